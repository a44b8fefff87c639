"""A fit that has diverged says so in a line, and others do not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.federations import blobs
from support.methods import network_for

from hierfl.inference import fit
from hierfl.inference.run.divergence import bad_metrics, divergence
from hierfl.models import FedAvg


def row(**values: Any) -> dict[str, Any]:
    return {"split": "validation", **values}


@pytest.mark.parametrize(
    ("metrics", "classes", "sd", "words"),
    [
        ({"pm_nll": math.nan, "pm_accuracy": 0.1}, 10, None, "NLL of personal predictions on validation data is not"),
        ({"pm_nll": 1.0, "pm_accuracy": 0.7, "gm_nll": math.inf}, 10, None, "NLL of global predictions"),
        ({"pm_nll": 31.0, "pm_accuracy": 0.12}, 10, None, "accuracy is 12.0% and NLL 31 on validation data, where"),
        ({"pm_nll": 31.0, "pm_accuracy": 0.6}, 10, None, ""),  # too sure, and still learned
        ({"pm_nll": 2.31, "pm_accuracy": 0.1}, 10, None, ""),  # has not begun
        ({"pm_nll": 1.5, "pm_accuracy": 0.7}, 2, None, ""),
        ({"pm_nll": 9.0, "pm_rmse": 31.0}, 0, 10.0, "RMSE on validation data is 31, and the responses' standard"),
        ({"pm_nll": 9.0, "pm_rmse": 12.0}, 0, 10.0, ""),
        ({"pm_nll": None, "pm_rmse": 31.0}, 0, None, ""),
        ({}, 10, None, ""),
    ],
)
def test_what_only_a_fit_that_has_diverged_leaves(metrics: Any, classes: int, sd: float | None, words: str) -> None:
    lines = bad_metrics(row(**metrics), classes, sd)
    assert len(lines) == bool(words)
    assert not lines or lines[0].startswith(words)


def test_a_step_that_is_too_large_is_named(caplog: pytest.LogCaptureFixture) -> None:
    federation = blobs([12, 9])
    net = network_for(FedAvg, federation)
    run = fit(FedAvg(net, lr=1e30), federation, rounds=2, seed=0, dtype=torch.float64, progress=False)
    line, _ = run.warnings  # and which client
    assert line.startswith("the fit has diverged: ")
    assert line.endswith("try smaller steps: lr=1e+29 (--set)")
    assert line in caplog.messages
    noisy = divergence(run.fitted, run.evaluations, run.status, replace(run.options, dp="client", epsilon=0.01))
    assert "it has noise for epsilon 0.01: try a larger epsilon; try smaller steps" in noisy
    calm = fit(FedAvg(net, lr=0.01), federation, rounds=2, seed=0, dtype=torch.float64, progress=False)
    assert calm.warnings == []
