"""Guides by name for a client's own part: what a flow bends to, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

import hierfl
from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.names import TRACE
from hierfl.models.any_model.own_guide.adam import Adam
from hierfl.models.any_model.own_guide.names import PARAMS, RATE

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEW: dict[str, Any] = {"fit_draws": 4, "last_steps": 3, "points": 16, "inner": 2, "draws": 8, "local_steps": 1}


def by_rows(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients(), batch.data():
        e = pyro.sample("e", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Poisson(e.exp()), obs=batch["y"])


def banana(batch: ColumnBatch) -> None:
    """A client's posterior is bent around 0, as its data are of a square."""
    mu = pyro.sample("mu", dist.Normal(0.0, 0.3))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(torch.stack([mu, 0 * mu], -1), 1.0).to_event(1))
        with batch.data():
            pyro.sample("y", dist.Normal(u[..., 1] + u[..., 0].square(), 0.4), obs=batch["y"])


def of_banana(y: np.ndarray) -> tuple[float, np.ndarray]:
    """Log evidence, and quantiles of the first number, by quadrature; u_1 ~ N(0, 1 + 0.3^2)."""
    a, b = np.meshgrid(np.linspace(-5, 5, 401), np.linspace(-7, 5, 401), indexing="ij")
    log = -0.5 * a**2 / 1.09 - 0.5 * b**2 - 0.5 * np.log(1.09) - np.log(2 * np.pi)
    log = log + sum(-0.5 * ((value - b - a**2) / 0.4) ** 2 - np.log(0.4 * np.sqrt(2 * np.pi)) for value in y)
    weight = np.exp(log)
    across = weight.sum(1).cumsum() / weight.sum()
    return float(np.log(weight.sum() * (10 / 400) * (12 / 400))), np.interp(QUANTILES, across, a[:, 0])


@pytest.mark.slow
@pytest.mark.cpu(200, "two whole stochastic ascents, one of a flow")
def test_a_flow_bends_where_a_gaussian_cannot() -> None:
    """The flow's bound is higher, and its quantiles are nearer to those of quadrature."""
    df = pd.DataFrame({"site": "a", "y": [0.9, 1.2, 1.0]})
    evidence, wanted = of_banana(df["y"].to_numpy())
    bounds, off = [], []
    for form in ("multivariate", "iaf"):
        fit = hierfl.fit_model(banana, df, client_guide=form, progress=False, draws=2000, check=False, rate=0.1)
        assert fit.arrived
        assert fit.method.users_guide.by_path == (form != "iaf")
        bounds.append(float(fit.run.shared["posterior.bound"]))
        off.append(np.abs(np.quantile(fit.clients["u"][:, 0, 0], QUANTILES) - wanted).max())
    assert bounds[0] + 0.5 < bounds[1] < evidence + 0.2
    assert off[1] < off[0] / 2


def test_one_gradient_without_bounds_ends_no_ascent() -> None:
    """As a flow's are, whose draws reach where a rate overflows: the steps after it are as long as before."""
    adam, gradient = Adam.begin(torch.zeros(2).double()), torch.tensor([1.0, 0.0]).double()
    for at in range(60):
        adam, move = adam.step(gradient * (1e9 if at == 40 else 1.0), 0.1)
    assert 0.05 < move[0] < 0.2
    assert move[1] == 0
    adam, move = adam.step(torch.tensor([0.0, 1e9]).double(), 0.1)
    assert move[1] > 0


def test_what_has_not_arrived_says_how_far_it_is() -> None:
    df = pd.DataFrame({"site": list("aabbb"), "y": [0.9, 1.2, 1.0, 0.5, 0.7]})
    fit = hierfl.fit_model(banana, df, client_guide="normal", progress=False, rounds=2, **FEW)
    fitted, trace = fit.run.fitted, fit.run.shared[TRACE]
    assert fit_lines(fit, fitted) == [
        "not arrived: its 2 rounds ended while the guide's parameters still moved, by steps of 0.05 (not halved yet): "
        "say more rounds"
    ]
    for rise, words in ((0.1, "rose by 5 ± 0.3 between"), (0.0, "fell by 0 ± 0.2 between")):
        rows = torch.arange(1, 101).double()
        bound = rise * rows + 2 * (rows % 2)
        trace = torch.stack([rows, 0 * rows, bound, 0 * rows, 0 * rows], 1)
        shared = {**fitted.shared, TRACE: trace, RATE: torch.tensor(0.0125).double()}
        notes = fit_lines(fit, replace(fitted, shared=shared))
        assert "by steps of 0.013 (halved 2 times)" in notes[0]
        assert words in notes[1]
        assert notes[1].endswith("no more than by chance") == (rise == 0)


def fit_lines(fit: Any, fitted: Any) -> list[str]:
    return fit.method.notes(fitted, 2)


@pytest.mark.cpu(4, "fits of two rounds")
@pytest.mark.parametrize("form", ["normal", "low-rank", "AutoMultivariateNormal", "iaf"])
def test_guides_by_name_run(form: str) -> None:
    """Two rounds of each: finite, and moved."""
    client_guide = getattr(pyro.infer.autoguide, form) if form.startswith("Auto") else form
    df = pd.DataFrame({"site": list("aabbb"), "y": [0.9, 1.2, 1.0, 0.5, 0.7]})
    fit = hierfl.fit_model(banana, df, client_guide=client_guide, progress=False, rounds=2, **FEW)
    start, end = fit.method.users_guide.shared.start, fit.run.shared[PARAMS]
    assert end.isfinite().all()
    assert (end != start).any()
    assert fit.clients["u"].shape == (8, 2, 2)
    assert "not arrived" in str(fit.summary())


def test_a_client_guide_is_known_and_the_only_guide() -> None:
    df = pd.DataFrame({"site": list("aab"), "y": [0.9, 1.2, 1.0], "x": 0.0})
    for how, words in (
        ({"client_guide": "planar"}, "client guide 'planar'"),
        ({"client_guide": "iaf", "guide": banana}, "say one of guide and client_guide"),
    ):
        with pytest.raises(UserError, match=words):
            hierfl.fit_model(banana, df, progress=False, **how)
    with pytest.raises(UserError, match="site 'e' is a latent of every row: client_guide='iaf'"):
        hierfl.fit_model(by_rows, df.assign(y=1.0), client_guide="iaf", progress=False)
