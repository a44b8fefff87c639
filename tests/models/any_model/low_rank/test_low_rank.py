"""Fits of more globals than a full covariance can have: beside dense answers, beside the full family, as points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

import hierfl
from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.low_rank.precision import LowRank
from hierfl.models.any_model.names import MEAN, PRECISION

NOISE, TAU = 0.5, 0.7


def table(clients: int, rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    site, x = np.repeat([f"s{j:02d}" for j in range(clients)], rows), rng.uniform(-2, 2, clients * rows)
    y = np.sin(2 * x) + TAU * np.repeat(rng.normal(size=clients), rows) + NOISE * rng.normal(size=clients * rows)
    return pd.DataFrame({"site": site, "x": x, "y": y})


class Features:
    """Linear in p cosines of one column, with an intercept of each client: all log joints are quadratic."""

    def __init__(self, p: int, decay: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(0)
        self.size = torch.arange(1, p + 1, dtype=torch.float64) ** -decay
        self.speed = 30 * torch.rand(p, generator=generator, dtype=torch.float64)
        self.phase = 7 * torch.rand(p, generator=generator, dtype=torch.float64)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return self.size * (self.speed * x[..., None] + self.phase).cos()

    def model(self, batch: ColumnBatch) -> None:
        beta = pyro.sample("beta", dist.Normal(torch.zeros(len(self.size)), 1.0).to_event(1))
        with batch.clients():
            u = pyro.sample("u", dist.Normal(0.0, TAU))
            with batch.data():
                pyro.sample("y", dist.Normal(u + self.of(batch["x"]) @ beta, NOISE), obs=batch["y"])

    def posterior(self, df: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Mean and precision, with the clients' intercepts integrated out."""
        precision, linear = np.eye(len(self.size)), np.zeros(len(self.size))
        for _, own in df.groupby("site"):
            x = self.of(torch.tensor(own["x"].to_numpy())).numpy()
            inverse = np.linalg.inv(NOISE**2 * np.eye(len(own)) + TAU**2)
            precision, linear = precision + x.T @ inverse @ x, linear + x.T @ inverse @ own["y"].to_numpy()
        return np.linalg.solve(precision, linear), precision


def compared(fitted: Any, mean: np.ndarray, precision: np.ndarray) -> tuple[float, np.ndarray]:
    """How far means are off in standard deviations at most, and the guide's standard deviations over those, (p,)."""
    sd = np.sqrt(np.linalg.inv(precision).diagonal())
    spread = LowRank.unpacked(fitted.run.shared[PRECISION]).variance.sqrt().numpy()
    return float(np.abs((fitted.run.shared[MEAN].numpy() - mean) / sd).max()), spread / sd


@pytest.mark.cpu(6, "a fit of 400 globals")
def test_a_posterior_whose_data_have_low_rank_is_exact_in_two_rounds() -> None:
    features, df = Features(400), table(4, 10)
    fitted = hierfl.fit_model(features.model, df, rank=50, draws=20, progress=False)
    off, ratio = compared(fitted, *features.posterior(df))
    assert (fitted.arrived, fitted.run.rounds) == (True, 2)
    assert off < 1e-6
    np.testing.assert_allclose(ratio, 1, atol=1e-6)
    assert "not reweighted, since 400 numbers are more than 30" in str(fitted.summary())


@pytest.mark.cpu(6, "a fit of more rounds")
def test_with_too_few_directions_the_mean_is_exact_and_standard_deviations_are_not() -> None:
    features, df = Features(60, decay=0.7), table(6, 20)
    fitted = hierfl.fit_model(features.model, df, guide="low-rank", rank=8, draws=20, progress=False)
    off, ratio = compared(fitted, *features.posterior(df))
    assert fitted.arrived
    assert off < 1e-6
    assert ratio.min() < 0.99
    assert 0.5 < ratio.min() < ratio.max() < 1.1


def poisson(batch: ColumnBatch) -> None:
    beta = pyro.sample("beta", dist.Normal(torch.zeros(5), 1.0).to_event(1))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(beta[..., 0], 0.5))
        with batch.data():
            eta = u + sum(beta[..., k] * (batch["x"] * k).cos() / 2 for k in range(1, 5))
            pyro.sample("y", dist.Poisson(eta.exp()), obs=batch["y"])


@pytest.mark.cpu(6, "two fits")
def test_with_all_directions_it_is_the_full_family() -> None:
    df = table(5, 6)
    df["y"] = np.random.default_rng(0).poisson(np.exp(df["y"])).astype(float)
    how: dict[str, Any] = {"progress": False, "reweigh": False, "fit_draws": 8, "fine_draws": 16, "draws": 20}
    full = hierfl.fit_model(poisson, df, guide="full", transforms="off", **how).run
    same = hierfl.fit_model(poisson, df, guide="low-rank", rank=9, **how).run
    assert same.rounds == full.rounds > 2
    torch.testing.assert_close(same.shared[MEAN], full.shared[MEAN], rtol=1e-6, atol=1e-6)
    dense = LowRank.unpacked(same.shared[PRECISION]).dense
    torch.testing.assert_close(dense, full.shared[PRECISION], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.cpu(12, "rounds of a network")
def test_a_network_of_more_than_300_weights_is_fitted_as_points() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    assert sum(w.numel() for w in net.parameters()) == 321

    def model(batch: ColumnBatch) -> None:
        pyro.module("net", net)
        with batch.clients():
            u = pyro.sample("u", dist.Normal(0.0, TAU))
            with batch.data():
                pyro.sample("y", dist.Normal(u + net(batch["x"][..., None])[..., 0], NOISE), obs=batch["y"])

    df = table(6, 15)
    fitted = hierfl.fit_model(model, df, rank=10, rounds=45, fit_draws=4, fine_draws=4, draws=10, progress=False)
    bounds = fitted.trace["bound"].to_numpy()
    assert bounds[-1] > bounds[1] + 30
    level = fitted.clients["u"].mean(0).repeat(15)
    curve, truth = fitted.predict(df)["mean"].to_numpy() - level, np.sin(2 * df["x"].to_numpy())
    assert np.corrcoef(curve, truth)[0, 1] > 0.9
    assert all((value == value[:1]).all() for value in fitted.globals.values())


def of_rows(batch: ColumnBatch) -> None:
    beta = pyro.sample("beta", dist.Normal(torch.zeros(301), 1.0).to_event(1))
    with batch.clients(), batch.data():
        e = pyro.sample("e", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(beta[0] + e, 1.0), obs=batch["y"])


@pytest.mark.parametrize(
    ("model", "rows", "guide", "line"),
    [
        (Features(301).model, 3, "full", "301 numbers of everyone, .* beyond 300 say guide='low-rank'"),
        (of_rows, 101, "auto", "301 numbers of everyone and 101 of a client, those of its rows .* at most 300"),
    ],
)
def test_what_many_globals_cannot_have_is_refused_in_one_line(model: Any, rows: int, guide: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as error:
        hierfl.fit_model(model, table(2, rows), guide=guide, progress=False)
    assert "\n" not in str(error.value)
