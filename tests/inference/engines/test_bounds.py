"""Which broadcasts a site computes with: all of an honest fit, and none that is made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bounded import Checked
from support.cases import FEW_STEPS, METHODS
from support.federations import blobs
from support.methods import network_for
from support.representatives import of_rules, over_methods
from support.sites import HOW, Sites, ready

from hierfl.experiments.methods import load
from hierfl.inference import Method
from hierfl.inference.engines.base import Broadcast
from hierfl.inference.engines.remote.bounds import Bounds, OutOfBounds
from hierfl.inference.engines.remote.wire import decode, put_under
from hierfl.models import FedAvg


@over_methods(METHODS, of_rules)
def test_honest_fits_are_within_bounds(case: tuple[type[Method], dict], tmp_path: Path) -> None:
    cls, settings = case
    federation = blobs([23, 7, 2, 14])
    method = cls(network_for(cls, federation), **settings, **FEW_STEPS.get(cls, {}))
    if method.replies:
        pytest.skip("its server speaks to single clients")
    sites = Checked(method, federation, tmp_path, **{**HOW, "rounds": 3, "participation": 0.7}).checking()
    run = sites.fit()
    assert len(run.participation) == 3


@pytest.mark.parametrize("name", ["pfedvmp", pytest.param("pfedeb", marks=pytest.mark.slow), "fedproto"])
def test_sums_over_many_rows_are_within_bounds(name: str, tmp_path: Path) -> None:
    """Counts of labels, and a log likelihood, begin with zero and are as large as there are many rows."""
    cls, federation = load(name).cls, blobs([200, 300, 100])
    sites = Checked(cls(network_for(cls, federation)), federation, tmp_path, **{**HOW, "rounds": 2}).checking()
    assert len(sites.fit().participation) == 2


def first_round(tmp_path: Path) -> tuple[Sites, Bounds, dict[str, Any], dict[str, torch.Tensor]]:
    sites = ready(FedAvg, {}, tmp_path, rounds=3, participation=1.0)
    site = sites.sites["place-00"]
    return sites, Bounds(site), {"kind": "round", "round": 1}, {k: v.clone() for k, v in site.shared.items()}


def test_round_1_begins_where_every_fit_begins(tmp_path: Path) -> None:
    _, bounds, head, shared = first_round(tmp_path)
    bounds.check(head, shared)
    name = next(iter(shared))
    shared[name] = shared[name] + 0.01
    with pytest.raises(OutOfBounds, match="is not what every fit begins with") as error:
        bounds.check(head, shared)
    assert error.value.refused == "bounds"


def test_with_noise_on_a_sum_no_step_is_checked_and_each_answer_has_noise(tmp_path: Path) -> None:
    """A refusal by how far a site's own training moves would be a bit without noise; a missing share, too."""
    noise = {"dp": "client", "epsilon": 4.0, "clip": 1.0, "masked": True, "rounds": 3, "participation": 1.0}
    site = ready(FedAvg, {}, tmp_path, **noise).sites["place-00"]
    bounds, shared = Bounds(site), {k: v.clone() for k, v in site.shared.items()}
    far = {k: v + 1e3 for k, v in shared.items()}
    bounds.check({"kind": "round", "round": 1}, shared)
    bounds.answered({"kind": "round", "round": 1}, shared)
    bounds.check({"kind": "round", "round": 2}, far)
    broken = {k: torch.full_like(v, torch.nan) for k, v in shared.items()}
    with torch.no_grad():
        message, failed = site.plate.message(Broadcast(1, broken), reports=True, always=True)
    assert failed
    sent = torch.cat([v.flatten() for group in message.values() for v in group.values()])
    assert sent.isfinite().all()
    assert 0 < float(sent.std()) < 1e3
    assert not site.plate.message(Broadcast(1, broken), reports=True)[0]


@pytest.mark.parametrize("kind", ["round", "scores", "sums", "calibration", "finish"])
def test_numbers_are_finite_wherever_values_are_carried(kind: str, tmp_path: Path) -> None:
    _, bounds, _, shared = first_round(tmp_path)
    shared[next(iter(shared))] *= torch.nan
    tensors = shared if kind == "round" else put_under("shared", shared)
    with pytest.raises(OutOfBounds, match="is not finite"):
        bounds.check({"kind": kind, "round": 2}, tensors)


def test_values_do_not_jump_between_rounds(tmp_path: Path) -> None:
    sites, bounds, _, _ = first_round(tmp_path)
    moved: dict[str, dict] = {}

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        head, tensors = decode(requests["place-00"])
        if head["kind"] == "round":
            moved[head["round"]] = tensors
            bounds.check(head, tensors)
            bounds.answered(head, tensors)
        return answers

    sites.fit(ask)
    name = next(k for k in moved[3] if k.startswith("base"))
    far = {**moved[3], name: moved[3][name] + 300 * (moved[3][name] - moved[2][name])}
    for kind, tensors in (("round", far), ("scores", put_under("shared", far))):
        with pytest.raises(OutOfBounds, match="moved farther") as error:
            bounds.check({"kind": kind, "round": 3 + (kind == "round")}, tensors)
        assert name in str(error.value)
