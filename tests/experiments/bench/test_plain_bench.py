"""What a plain model costs is measured on the same work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.commands import Call

from hierfl.experiments.bench import plain
from hierfl.models.any_model.moments import moments
from hierfl.models.any_model.steps import AtSites


def test_contestants_compute_the_same_gradients() -> None:
    fit = plain.prepared(5)
    fit.step()
    at = AtSites.for_chunk(fit.method, plain.chunk_of(fit))
    x, v = at.mean + at.moved, at.guide.draws(at.moved, at.noise)
    expected = moments(at.clients.log_joint, x, v)
    for simplified in (False, True):
        other = moments(plain.by_hand(at, simplified), x, v)
        for name in ("height", "gradient", "hessian"):
            torch.testing.assert_close(getattr(other, name), getattr(expected, name), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.cpu(6, "a fit")
def test_the_benchmark_writes_what_it_measured(hierfl: Call, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    code, text, _ = hierfl("bench", "plain", "--clients", "3", "--repeats", "1", "--out", out)
    assert code == 0
    assert "3 clients" in text
    (result,) = json.loads(out.read_text())["results"]
    assert result["rounds"].keys() == {"rough", "fine", "explore", "final draws"}
    assert all(len(beside["hierfl_over"]) == 2 for beside in result["beside"].values())
    code, _, error = hierfl("bench", "plain", "--batch", "3")
    assert code == 2
    assert "without --batch" in error
