"""Sums of sketches: the same at sites as on a plate, with clients missing, after a kill; nothing else leaves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import small
from support.sites import Sites

from hierfl.data.column_batch import ColumnBatch
from hierfl.inference import fit
from hierfl.inference.engines.remote.bounds import Bounds, OutOfBounds
from hierfl.inference.engines.remote.wire import decode
from hierfl.models.any_model.low_rank.precision import LowRank
from hierfl.models.any_model.names import MEAN, PHASE, PRECISION, Phase

HOW: dict[str, Any] = {"rounds": 60, "splits": (), "dtype": torch.float64}
P, R = 8, 3


def counts(batch: ColumnBatch) -> None:
    """Counts by cosines of a column, and an intercept of each client."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(P), 0.5).to_event(1))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(beta[..., 0], 0.3))
        with batch.data():
            eta = u + sum(beta[..., k] * (k * batch["x"]).cos() for k in range(1, P))
            pyro.sample("y", dist.Poisson(eta.exp()), obs=batch["y"])


SETTINGS: dict[str, Any] = {"guide": "low-rank", "rank": R, "reweigh": False}


@pytest.mark.slow
@pytest.mark.cpu(8, "a fit on a plate and at every site, and a resumed one")
def test_sites_have_the_posterior_of_the_plate_and_send_nothing_undeclared(tmp_path: Path) -> None:
    method, federation = small(counts, **SETTINGS)
    reference = fit(method, federation, progress=False, chunk=2, folder=tmp_path / "whole", **HOW)
    declared = {
        "clients": 1, "joined": 1, "bound": 1, "spread": 1, "heavy": 1, "centrings": 1, "linear": P, "diagonal": P,
        "sketch": P * R, "heights": 0, "noise": 1,
    }  # fmt: skip
    sites = Sites(method, federation, tmp_path / "sites", **HOW)

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        for name, answer in answers.items():
            if decode(requests[name])[0]["kind"] == "round":
                tensors = decode(answer)[1]
                assert {k.removeprefix("posterior|"): v.numel() for k, v in tensors.items()} == declared
        return answers

    other = sites.fit(ask)
    assert int(reference.shared[PHASE]) == Phase.DONE
    for name, value in reference.shared.items():
        torch.testing.assert_close(other.shared[name], value, rtol=1e-8, atol=1e-8)
    fit(method, federation, progress=False, chunk=2, folder=tmp_path / "killed", **{**HOW, "rounds": 3})
    again = fit(method, federation, progress=False, chunk=2, folder=tmp_path / "killed", resume=True, **HOW)
    assert all(torch.equal(value, again.shared[name]) for name, value in reference.shared.items())


@pytest.mark.slow
def test_absent_clients_count_as_they_were_last_counted() -> None:
    method, federation = small(counts, **SETTINGS)
    whole = fit(method, federation, progress=False, **HOW)
    half = fit(method, federation, progress=False, participation=0.6, **{**HOW, "rounds": 200})
    assert int(half.shared[PHASE]) == Phase.DONE
    sd = LowRank.unpacked(whole.shared[PRECISION]).variance.sqrt()
    assert float(((half.shared[MEAN] - whole.shared[MEAN]) / sd).abs().max()) < 0.1
    ratio = LowRank.unpacked(half.shared[PRECISION]).variance.sqrt() / sd
    assert float(ratio.log().abs().max()) < 0.1


def test_a_broadcast_that_is_no_precision_is_refused(tmp_path: Path) -> None:
    method, federation = small(counts, **SETTINGS)
    site = Sites(method, federation, tmp_path, **HOW).sites[federation.ids[0]]
    bounds, head = Bounds(site), {"kind": "round", "round": 2}
    bounds.check(head, dict(site.shared))
    with pytest.raises(OutOfBounds, match="not positive definite"):
        bounds.check(head, {**site.shared, PRECISION: -site.shared[PRECISION]})


@pytest.mark.cpu(4, "a fit of 2 clients with and without an exploration")
def test_few_globals_of_low_rank_are_reweighted() -> None:
    """Of a Gaussian posterior too, since the guide has another covariance."""
    method, federation = small(counts, **{**SETTINGS, "reweigh": True})
    run = fit(method, federation, progress=False, **HOW)
    assert method.explores
    assert "globals are reweighted" in " ".join(method.notes(run.fitted, run.rounds))
