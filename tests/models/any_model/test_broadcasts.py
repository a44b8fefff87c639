"""What a site computes with, and what it costs: a plain model's broadcasts and the points that they ask about."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.any_models import FEW, small
from support.bounded import Checked
from support.sites import Sites

from hierfl.experiments.federate.guard.budgets import MORE, SUMS, default_budget, usual_need
from hierfl.inference.engines.remote.bounds import Bounds, OutOfBounds
from hierfl.inference.engines.remote.points import explores, points_of
from hierfl.inference.method.capabilities import needs_everyone
from hierfl.inference.options import Options
from hierfl.inference.state import State
from hierfl.models.any_model.names import PHASE, POINTS, PRECISION, Phase
from hierfl.models.any_model.rule import MISSED

HOW: dict[str, Any] = {"rounds": 40, "splits": (), "dtype": torch.float64}
HEAD = {"kind": "round", "round": 2}


def in_phase(shared: State, phase: float) -> State:
    """The same values with another phase."""
    return {**shared, PHASE: torch.tensor(phase, dtype=torch.float64)}


@pytest.mark.cpu(3, "a fit at every site")
def test_an_honest_fit_is_within_bounds(tmp_path: Path) -> None:
    method, federation = small()
    run = Checked(method, federation, tmp_path, **HOW).checking().fit()
    assert int(run.shared[PHASE]) == Phase.DONE


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        (PHASE, lambda v: v + 4, "asks for nothing"),
        (PHASE, lambda v: v + 0.5, "asks for nothing"),
        (PHASE, lambda v: v - 1, "asks for nothing"),
        (PRECISION, lambda v: -v, "not positive definite"),
        (PRECISION, lambda v: torch.zeros_like(v), "not positive definite"),
        (PRECISION, lambda v: v + torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=v.dtype), "not positive definite"),
        (POINTS, lambda v: v * torch.nan, "not finite"),
    ],
)
def test_a_broadcast_that_no_fit_makes_is_refused(name: str, change: Any, line: str, tmp_path: Path) -> None:
    method, federation = small()
    site = Sites(method, federation, tmp_path, **HOW).sites[federation.ids[0]]
    bounds, shared = Bounds(site), {k: v.clone() for k, v in site.shared.items()}
    bounds.check(HEAD, shared)
    shared[name] = change(shared[name])
    with pytest.raises(OutOfBounds, match=line) as error:
        bounds.check(HEAD, shared)
    assert error.value.refused == "bounds"


def test_explored_points_count() -> None:
    """A round of a climb is one point; one of the exploration is all that it asks about, asked again or not."""
    method, _ = small()
    assert not needs_everyone(method)
    shared = {PHASE: torch.tensor(0.0), POINTS: torch.zeros(FEW["points"], method.p)}
    for phase, points in ((Phase.ROUGH, 1), (Phase.FINE, 1), (Phase.EXPLORE, FEW["points"]), (Phase.DONE, 1)):
        assert points_of(method, HEAD, in_phase(shared, phase)) == points
        assert explores(method, HEAD, in_phase(shared, phase)) == (phase == Phase.EXPLORE)
    options, explored = Options(rounds=40, splits=()), (FEW["explored_rounds"] + MISSED) * FEW["points"]
    plain = default_budget(method, options)
    assert plain == math.ceil(MORE * (40 + SUMS))
    assert default_budget(method, options, exploration=True) == plain + explored
    assert usual_need(method, options) == 40 + explored
    assert usual_need(small(reweigh=False)[0], options) == 40
