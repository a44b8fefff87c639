"""Invariant 8, evaluation is clean: nothing is chosen on test data."""

from __future__ import annotations

import dataclasses

import torch
from support.federations import blobs

from hierfl import Federation
from hierfl.inference import fit
from hierfl.models import (
    FedAvg,
    PFedVEM,
)
from hierfl.nn.architecture import Architecture
from hierfl.nn.networks.build import architecture


def test_nothing_is_chosen_on_test_data(net: Architecture) -> None:
    """Scrambled test labels change the test numbers, and nothing else: state, validation rows, the best round."""
    fed = blobs([40, 30, 60])
    validated = dataclasses.replace(fed, validation=[i[:10] for i in fed.train], train=[i[10:] for i in fed.train])
    y = validated.y.clone()
    tests = torch.cat(list(validated.test))
    y[tests] = (y[tests] + 1) % 3
    method = PFedVEM(architecture("mlp:5", validated), base_lr=0.05, head_lr=0.01)
    honest = fit(method, validated, rounds=6, progress=False)
    scrambled = fit(method, dataclasses.replace(validated, y=y), rounds=6, progress=False)
    for name, value in {**honest.shared, **honest.personal}.items():
        assert torch.equal(value, {**scrambled.shared, **scrambled.personal}[name])

    def validation(run: object) -> list:
        return [[row[k] for k in row if k != "seconds"] for row in run.evaluations if row["split"] == "validation"]

    assert validation(honest) == validation(scrambled)
    assert honest.best()["round"] == scrambled.best()["round"]
    assert honest.last()["round"] == 6
    assert honest.last()["pm_accuracy"] != scrambled.last()["pm_accuracy"]


def test_evaluation_follows_one_schedule(small: Federation, net: Architecture) -> None:
    run = fit(FedAvg(net), small, rounds=9, evaluate_every=4, progress=False)
    assert [row["round"] for row in run.evaluations] == [1, 5, 9]
    run = fit(FedAvg(net), small, rounds=7, evaluate_every=4, progress=False)
    assert [row["round"] for row in run.evaluations] == [1, 5, 7]
