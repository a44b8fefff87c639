"""Skew and tail on every engine: the same posterior, nothing undeclared that leaves, with kills and absent clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import FEW, counts, poisson, small
from support.sites import Sites

import hierfl
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_federation import column_federation
from hierfl.inference import Run, fit
from hierfl.inference.engines.remote.bounds import Bounds, OutOfBounds
from hierfl.inference.engines.remote.wire import decode
from hierfl.models.any_model.by_rows import layout
from hierfl.models.any_model.columns import checked
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.names import BOUND, DRAWS, MEAN, OWN_DRAWS, PHASE, PRECISION, SHAPE, WORTH, Phase
from hierfl.models.any_model.sbc.replicates import Replicates

HOW: dict[str, Any] = {"rounds": 60, "splits": (), "dtype": torch.float64}


def rare(batch: ColumnBatch) -> None:
    """Few counts, so that the rate is skewed."""
    rate = pyro.sample("rate", dist.Gamma(1.0, 4.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(0.0, 0.3))
        with batch.data():
            pyro.sample("y", dist.Poisson(rate * u.exp()), obs=(batch["y"] > 4).double())


def made(**settings: Any) -> tuple[AnyModel, Any]:
    return small(rare, transforms="on", **settings)


def fitted(method: AnyModel, federation: Any, **how: Any) -> Run:
    """On a plate."""
    return fit(method, federation, progress=False, **{**HOW, **how})


def near(values: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], within: float) -> None:
    """Up to the order of a sum."""
    assert values.keys() == other.keys()
    for name, value in values.items():
        torch.testing.assert_close(
            other[name], value, rtol=within, atol=within, msg=lambda text, at=name: f"{at}: {text}"
        )


@pytest.mark.cpu(8, "fits on a plate and at every site")
@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sites_have_the_posterior_of_the_plate(masked: bool, tmp_path: Path) -> None:
    """From the climb to the exploration and the clients' draws; with masks to the bit. Plates of any size agree."""
    method, federation = made()
    reference = fitted(method, federation, chunk=1, masked=masked)
    assert int(reference.shared[PHASE]) == Phase.DONE
    assert float(reference.shared[WORTH]) >= FEW["worth"]
    assert float(reference.shared[SHAPE][2:].abs().max()) > 0.05
    declared = {
        "clients": 1, "joined": 1, "bound": 1, "spread": 1, "heavy": 1, "centrings": 1, "linear": 1, "precision": 1,
        "shape": 2, "heights": FEW["points"], "noise": 1,
    }  # fmt: skip
    sites = Sites(method, federation, tmp_path, masked=masked, **HOW)

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        for name, answer in answers.items():
            if not masked and decode(requests[name])[0]["kind"] == "round":
                sent = decode(answer)[1]
                assert {k.removeprefix("posterior|"): v.numel() for k, v in sent.items()} == declared
        return answers

    other = sites.fit(ask)
    within = 0.0 if masked else 1e-8
    near(reference.shared, other.shared, within)
    near(reference.fitted.personal, sites.values("personal"), within)
    if not masked:
        for chunk in (2, 7):
            near(reference.shared, fitted(method, federation, chunk=chunk).shared, 1e-8)


@pytest.mark.slow
def test_a_fit_goes_on_after_a_kill_with_the_same_bits(tmp_path: Path) -> None:
    method, federation = made()
    whole = fitted(method, federation)
    first = next(k for k in range(1, whole.rounds) if fitted(method, federation, rounds=k).shared[SHAPE][2:].any())
    for rounds in (first, whole.rounds - 1):
        fitted(method, federation, rounds=rounds, folder=tmp_path / f"run-{rounds}")
        again = fitted(method, federation, folder=tmp_path / f"run-{rounds}", resume=True)
        near(whole.shared, again.shared, 0.0)
        near(whole.fitted.personal, again.fitted.personal, 0.0)


@pytest.mark.slow
@pytest.mark.cpu(6, "a fit with all, and one with half of the clients")
def test_absent_clients_count_as_they_were_last_counted() -> None:
    method, federation = made(reweigh=False, fine_draws=128, draws=4000)
    whole = fitted(method, federation)
    part = fitted(method, federation, rounds=300, participation=0.6)
    assert int(part.shared[PHASE]) == Phase.DONE
    sd = whole.shared[DRAWS].std()
    ends = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    apart = part.shared[DRAWS].quantile(ends, 0) - whole.shared[DRAWS].quantile(ends, 0)
    assert float(apart.abs().max() / sd) < 0.08


@pytest.mark.parametrize(("row", "value", "line"), [(1, 0.0, "scales"), (2, 9.0, "skews"), (3, -3.0, "tails")])
def test_a_broadcast_that_no_fit_makes_is_refused(row: int, value: float, line: str, tmp_path: Path) -> None:
    method, federation = made()
    site = Sites(method, federation, tmp_path, **HOW).sites[federation.ids[0]]
    bounds, head = Bounds(site), {"kind": "round", "round": 2}
    bounds.check(head, dict(site.shared))
    wrong = site.shared[SHAPE].clone()
    wrong[row] = value
    with pytest.raises(OutOfBounds, match=line):
        bounds.check(head, {**site.shared, SHAPE: wrong})


@pytest.mark.slow
@pytest.mark.cpu(6, "two fits one after the other beside the two together")
@pytest.mark.parametrize("reweigh", [True, False])
def test_replicates_of_a_calibration_are_fits_of_their_data(reweigh: bool) -> None:
    each = [counts((4, 6, 3), seed) for seed in (1, 2)]
    each = [df.assign(site=[f"{k}/{name}" for name in df["site"]]) for k, df in enumerate(each)]
    federation, design = column_federation(pd.concat(each, ignore_index=True), "site")
    how = {**FEW, "transforms": "on", "reweigh": reweigh}
    method = AnyModel(checked(poisson, federation, design), poisson, **how)
    together = Replicates(method, federation.to(dtype=torch.float64), 3, [11, 12]).run()
    assert {replicate.alone for replicate in together} == {False}
    for df, replicate, seed in zip(each, together, (11, 12), strict=True):
        run = hierfl.fit_model(poisson, df, progress=False, seed=seed, **how).run
        assert replicate.rounds == run.rounds
        assert replicate.shared[SHAPE][2:].any()
        for name in (MEAN, PRECISION, SHAPE, DRAWS, WORTH):
            torch.testing.assert_close(replicate.shared[name], run.shared[name], rtol=1e-7, atol=1e-7)


def deviations(batch: ColumnBatch) -> None:
    """Latents of rows."""
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(0.0, 0.5))
        with batch.data():
            e = pyro.sample("e", dist.Normal(u, tau))
            pyro.sample("y", dist.Poisson(e.exp()), obs=batch["y"])


@pytest.mark.cpu(12, "two fits")
def test_latents_of_rows_in_the_form_of_an_arrow_have_the_same_skew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside full covariances."""
    df, how = counts((6, 4, 5)), {"progress": False, "reweigh": False, "draws": 2000}
    dense = hierfl.fit_model(deviations, df, transforms="on", **how)
    monkeypatch.setattr(layout, "MOST_BY_ROWS", 3)
    other = hierfl.fit_model(deviations, df, **how)
    assert other.method.layout is not None
    assert other.run.shared[SHAPE][2:].any()
    assert float(other.run.shared[BOUND]) == pytest.approx(float(dense.run.shared[BOUND]), abs=0.1)
    ends = [np.quantile(np.log(of.globals["tau"]), [0.05, 0.5, 0.95]) for of in (dense, other)]
    assert np.abs(ends[0] - ends[1]).max() < 0.15 * np.log(dense.globals["tau"]).std()


@pytest.mark.cpu(6, "a fit, and a client that learns")
def test_draws_and_new_clients_are_of_the_model_and_not_of_the_guide() -> None:
    """Kept draws have the sites' own numbers; a new client that has a fitted one's rows has its posterior."""
    df = counts((7, 4, 9, 5))
    fitted_model = hierfl.fit_model(poisson, df, progress=False, transforms="on", draws=2000)
    same = df[df["site"] == "s02"]
    old = fitted_model.predictive(same.drop(columns="y"))
    new = fitted_model.predictive(same.drop(columns=["y", "site"]), client="other", given=same.drop(columns="site"))
    sd = old.std(0)
    assert np.abs((old.mean(0) - new.mean(0)) / sd).max() < 0.25
    joint = fitted_model.run
    assert joint.fitted.personal[OWN_DRAWS].shape[1] == 2000
