"""Points: guides of other families than the full one, ``pyro.param``, modules."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn

import hierfl
from hierfl.arviz_data import group_names
from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.names import MEAN, PRECISION

J, N = 6, 5


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    site, x = np.repeat([f"s{j}" for j in range(J)], N), rng.normal(1, 1, J * N)
    return pd.DataFrame(
        {"site": site, "x": x, "y": np.repeat(rng.normal(1, 1, J), N) + 0.5 * x + rng.normal(size=J * N)}
    )


def test_parameters_are_where_the_marginal_likelihood_is_highest() -> None:
    """Balanced one-way: all three have closed forms (Searle, Casella and McCulloch, 1992, section 3.7)."""

    def model(batch: ColumnBatch) -> None:
        mu = pyro.param("mu", torch.zeros(()))
        tau = pyro.param("tau", torch.tensor(1.0), constraint=constraints.positive)
        sigma = pyro.param("sigma", lambda: torch.tensor(1.0), constraint=constraints.positive)
        with batch.clients():
            u = pyro.sample("u", dist.Normal(mu, tau))
            with batch.data():
                pyro.sample("y", dist.Normal(u, sigma), obs=batch["y"])

    fitted = hierfl.fit_model(model, frame(), progress=False)
    y = frame()["y"].to_numpy().reshape(J, N)
    within = ((y - y.mean(1, keepdims=True)) ** 2).sum() / (J * (N - 1))
    between = N * y.mean(1).var()
    estimates = {name: value[0] for name, value in fitted.globals.items()}
    assert estimates["mu"] == pytest.approx(y.mean(), abs=1e-8)
    assert estimates["sigma"] ** 2 == pytest.approx(within, rel=1e-5)
    assert estimates["tau"] ** 2 == pytest.approx((between - within) / N, rel=1e-5)
    assert fitted.summary().notes == ("points without a spread: mu, tau, sigma",)
    assert fitted.prior_predictive(3)["mu"] == pytest.approx(estimates["mu"])


def linear(batch: ColumnBatch) -> None:
    b = pyro.sample("b", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(b[0], 0.5))
        with batch.data():
            pyro.sample("y", dist.Normal(u + b[1] * batch["x"], 1.0), obs=batch["y"])


@pytest.mark.parametrize("guide", ["full", "diagonal", "point"])
def test_each_family_is_at_its_exact_optimum(guide: str) -> None:
    """A Gaussian posterior: the mean in all, the precision's diagonal of independent numbers; in two rounds."""
    df = frame()
    precision, linear_ = np.eye(2) / 4, np.zeros(2)
    for _, own in df.groupby("site"):
        design = np.c_[np.ones(N), own["x"]]
        inverse = np.linalg.inv(np.eye(N) + 0.25)
        precision, linear_ = precision + design.T @ inverse @ design, linear_ + design.T @ inverse @ own["y"]
    fitted = hierfl.fit_model(linear, df, guide=guide, progress=False)
    assert fitted.run.rounds == 2
    shared, family = fitted.run.shared, fitted.method.family
    torch.testing.assert_close(
        shared[MEAN], torch.from_numpy(np.linalg.solve(precision, linear_)), rtol=1e-8, atol=1e-8
    )
    root = family.root(shared[PRECISION]).numpy()
    expected = {
        "full": np.linalg.inv(precision), "diagonal": np.diag(1 / precision.diagonal()), "point": np.zeros((2, 2)),
    }[guide]  # fmt: skip
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-8, atol=1e-12)


def test_a_point_is_the_mode_of_the_density_that_the_model_states() -> None:
    """Without the map's determinant: a Gamma(2, 1) rate of J N exponential times."""

    def model(batch: ColumnBatch) -> None:
        rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
        with batch.clients(), batch.data():
            pyro.sample("y", dist.Exponential(rate), obs=batch["y"])

    df = frame()
    df["y"] = df["y"].abs() + 0.1
    fitted = hierfl.fit_model(model, df, guide="point", progress=False)
    assert fitted.globals["rate"][0] == pytest.approx((1 + J * N) / (1 + df["y"].sum()), rel=1e-4)


class Whole(PyroModule):
    """A model that is a module: a weight with a prior, a positive parameter, a plain layer."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = PyroModule[nn.Linear](1, 1, bias=False)
        self.slope.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 1]).to_event(2))
        self.sigma = PyroParam(torch.tensor(1.0), constraint=constraints.positive)
        self.level = nn.Linear(1, 1, bias=False)

    def forward(self, batch: ColumnBatch) -> None:
        slope, sigma = self.slope.weight[0, 0], self.sigma
        level = self.level(torch.ones(1)).squeeze()
        with batch.clients():
            u = pyro.sample("u", dist.Normal(level, 1.0))
            with batch.data():
                pyro.sample("y", dist.Normal(u + slope * batch["x"], sigma), obs=batch["y"])


def test_a_module_may_be_the_model() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Whole()
    fitted = hierfl.fit_model(model, frame(), progress=False, points=64, worth=10)
    table = fitted.summary().table.set_index("name")
    assert fitted.arrived
    assert table.index.tolist() == ["level.weight[0,0]", "slope.weight[0,0]", "sigma"]
    assert (table["sd"] == 0).tolist() == [True, False, True]
    assert table.loc["slope.weight[0,0]", "mean"] == pytest.approx(0.5, abs=0.5)
    assert fitted.predict(frame().head(2))["mean"].notna().all()  # weights in single precision, rows in double


class Regression(PyroModule):
    """Weights and bias whose priors were made in single precision, and a layer that takes columns."""

    def __init__(self) -> None:
        super().__init__()
        self.line = PyroModule[nn.Linear](1, 1)
        self.line.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 1]).to_event(2))
        self.line.bias = PyroSample(dist.Normal(0.0, 1.0).expand([1]).to_event(1))

    def forward(self, batch: ColumnBatch) -> None:
        line = self.line(batch["x"][..., None])[..., 0]
        with batch.clients():
            u = pyro.sample("u", dist.Normal(0.0, 1.0))
            with batch.data():
                pyro.sample("y", dist.Normal(u + line, 1.0), obs=batch["y"])


def test_the_prior_of_a_module_is_drawn_in_double_precision() -> None:
    with torch.random.fork_rng():
        model = Regression()
    fitted = hierfl.fit_model(model, frame(), progress=False, points=64, worth=10)
    drawn = fitted.prior_predictive(20)
    assert drawn["line.weight"].dtype == drawn["y"].dtype == np.float64
    assert "prior" in group_names(fitted.posterior())


@pytest.mark.cpu(3, "a fit with 13 weights, for which 2 x 13 + 3 draws and more are needed")
def test_a_network_is_everyones_and_is_left_as_it_was() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    before = [weight.detach().clone() for weight in net.parameters()]

    def model(batch: ColumnBatch) -> None:
        pyro.module("net", net)
        with batch.clients():
            u = pyro.sample("u", dist.Normal(0.0, 1.0))
            with batch.data():
                mean = u + net(batch["x"][..., None])[..., 0]
                pyro.sample("y", dist.Normal(mean, 1.0), obs=batch["y"])

    bounds = [
        float(hierfl.fit_model(model, frame(), rounds=rounds, progress=False).run.shared["posterior.bound"])
        for rounds in (2, 12)
    ]
    assert bounds[1] > bounds[0] + 1
    assert all(torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))
