"""Latents of many rows: the same posterior as by full covariances, in the form of an arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_models import FEW, counts, federation_of
from support.sites import Sites

import hierfl
from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.inference import Run, fit
from hierfl.models.any_model.by_rows import layout
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.names import BOUND, CENTRING, MEAN, OWN_DRAWS, PRECISION

HOW: dict[str, Any] = {"rounds": 4, "splits": (), "dtype": torch.float64}


def gaussian(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, 2.0))
        with batch.data():
            e = pyro.sample("e", dist.Normal(theta, 1.0))
            pyro.sample("y", dist.Normal(e, 1.5), obs=batch["y"])


def integrated(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, 2.0))
        with batch.data():
            pyro.sample("y", dist.Normal(theta, 3.25**0.5), obs=batch["y"])


@pytest.mark.cpu(6, "rows by the thousand")
def test_a_gaussian_model_is_exact_with_thousands_of_rows() -> None:
    """Beside the model with its rows' latents integrated out: to 1e-8, in two rounds; the bound is the evidence."""
    rng = np.random.default_rng(0)
    parts = [pd.DataFrame({"site": f"c{j}", "y": rng.normal(j, 2, size=n)}) for j, n in enumerate([1500, 900, 40])]
    with_latents, other = (
        hierfl.fit_model(model, pd.concat(parts), progress=False, draws=200) for model in (gaussian, integrated)
    )
    assert with_latents.run.rounds == 2
    for name in (MEAN, PRECISION, BOUND):
        torch.testing.assert_close(with_latents.run.shared[name], other.run.shared[name], rtol=1e-8, atol=1e-8)
    n = np.array([1500, 900, 40])
    sd = 1 / np.sqrt(n / 3.25 + 0.25)  # given mu, of which little is left
    mean = np.array([part["y"].mean() for part in parts])
    assert np.abs((with_latents.clients["theta"].mean(0) - mean) / sd)[:2].max() < 0.3
    np.testing.assert_allclose(with_latents.clients["theta"].std(0), sd, rtol=0.2)
    assert with_latents.run.fitted.personal[OWN_DRAWS].shape == (3, 200, 1501)
    assert "a client has 1,501 numbers" in str(with_latents.summary())
    given = pd.DataFrame({"site": "new", "y": [4.0] * 300})
    learned = with_latents.predict(given.iloc[:2], given=given)
    assert learned["mean"].to_numpy() == pytest.approx([4.0, 4.0], abs=0.4)
    assert learned["sd"].to_numpy() == pytest.approx(3.25**0.5, rel=0.2)  # a new row has a latent of its own
    assert with_latents.predict(pd.DataFrame({"site": ["c1"]}))["mean"][0] == pytest.approx(mean[1], abs=0.4)


def overdispersed(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, 0.5))
        with batch.data():
            e = pyro.sample("e", dist.Normal(theta + 0.1 * batch["x"], sigma))
            pyro.sample("y", dist.Poisson(e.exp()), obs=batch["y"])


def two_of_a_row(batch: ColumnBatch) -> None:
    """Two latents of a row, one of which depends on the other; none of the client's own."""
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    with batch.clients(), batch.data():
        e = pyro.sample("e", dist.Normal(mu, 0.5))
        f = pyro.sample("f", dist.Normal(torch.zeros(2), 0.3).to_event(1))
        g = pyro.sample("g", dist.Normal(e + f.sum(-1), 0.5))
        pyro.sample("y", dist.Poisson(g.exp()), obs=batch["y"])


def small(model: Any, **settings: Any) -> tuple[AnyModel, Any]:
    rows = (5, 3, 6, 4)
    method = AnyModel(ColumnDesign.from_columns(("x", "y"), rows=6), model, **{**FEW, "reweigh": False, **settings})
    return method, federation_of(counts(rows))


def fitted(method: AnyModel, federation: Any, **how: Any) -> Run:
    return fit(method, federation, progress=False, **{**HOW, **how})


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any latents of rows are many."""
    monkeypatch.setattr(layout, "MOST_BY_ROWS", 0)


@pytest.mark.cpu(20, "four fits")
@pytest.mark.parametrize("model", [pytest.param(overdispersed, marks=pytest.mark.slow), two_of_a_row])
def test_it_is_the_guide_of_full_covariance(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts: the same bound, means and sds as by full covariances, but for the draws' noise."""
    many = {"fit_draws": 256, "fine_draws": 512}
    full = fitted(*small(model, **many), rounds=60)
    monkeypatch.setattr(layout, "MOST_BY_ROWS", 0)
    method, federation = small(model, **many)
    assert method.layout is not None
    arrow = fitted(method, federation, rounds=60)
    sd = full.shared[PRECISION].inverse().diagonal().sqrt()
    assert float(((arrow.shared[MEAN] - full.shared[MEAN]) / sd).abs().max()) < 0.1
    torch.testing.assert_close(arrow.shared[PRECISION].inverse().diagonal().sqrt(), sd, rtol=0.06, atol=0)
    torch.testing.assert_close(arrow.shared[BOUND], full.shared[BOUND], rtol=0, atol=0.1)
    torch.testing.assert_close(arrow.fitted.personal[CENTRING], full.fitted.personal[CENTRING], rtol=0, atol=0.15)


@pytest.mark.cpu(6, "fits on plates of two sizes, and at every site")
def test_engines_agree_and_a_fit_goes_on_with_the_same_bits(few: None, tmp_path: Path) -> None:
    method, federation = small(overdispersed)
    reference = fitted(method, federation, chunk=1)
    sites = Sites(method, federation, tmp_path / "sites", **HOW)
    others = [fitted(method, federation, chunk=4), sites.fit()]
    for other in others:
        for name, value in reference.shared.items():
            torch.testing.assert_close(other.shared[name], value, rtol=1e-8, atol=1e-8)
    for personal in (others[0].fitted.personal, sites.values("personal")):
        for name, value in reference.fitted.personal.items():
            torch.testing.assert_close(personal[name], value, rtol=1e-8, atol=1e-8)
    fitted(method, federation, rounds=2, chunk=1, folder=tmp_path / "run")
    again = fitted(method, federation, chunk=1, folder=tmp_path / "run", resume=True)
    assert all(torch.equal(again.shared[name], value) for name, value in reference.shared.items())
    assert all(torch.equal(again.fitted.personal[name], value) for name, value in reference.fitted.personal.items())


def chain(batch: ColumnBatch) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    with batch.clients():
        with batch.data():
            e = pyro.sample("e", dist.Normal(mu, 1.0))
            pyro.sample("y", dist.Normal(e, 1.0), obs=batch["y"])
        pyro.factor("smooth", -(e[..., 1:] - e[..., :-1]).square().sum(-1, keepdim=True))


def test_rows_that_depend_on_one_another_are_one_line() -> None:
    frame = pd.DataFrame({"site": ["a"] * 120 + ["b"] * 101, "y": np.arange(221.0) / 50})
    with pytest.raises(UserError, match="site 'e' is a latent of every row.*its rows depend on one another"):
        hierfl.fit_model(chain, frame, progress=False)
