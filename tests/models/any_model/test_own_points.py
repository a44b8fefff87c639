"""Points of each client: ``pyro.param`` with ``event_dim`` within the plate of clients.

They are where the client's likelihood is highest at each value of the globals, to first order: a profile likelihood.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam
from scipy.special import gammaln
from support.any_models import small
from support.sites import Sites

from hierfl import UserError, fit_model
from hierfl.data.column_batch import ColumnBatch
from hierfl.inference import fit
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.engines.remote.wire import decode
from hierfl.models.any_model.heights import heights
from hierfl.models.any_model.method import AnyModel
from hierfl.models.any_model.names import MEAN, OWN_DRAWS, PRECISION, WORTH
from hierfl.models.any_model.sbc.simulate import simulate

J, N, TAU = 6, 5, 0.7


def frame() -> pd.DataFrame:
    """Levels of clients that go with their x: what a level is not known to, a slope is not."""
    rng = np.random.default_rng(0)
    level = np.repeat(2 * rng.normal(size=J), N)
    x = level / 2 + rng.normal(1, 1, J * N)
    slope = 0.5 + np.repeat(TAU * rng.normal(size=J), N)
    y = level + slope * x + rng.normal(size=J * N)
    return pd.DataFrame({"site": np.repeat([f"s{j}" for j in range(J)], N), "x": x, "y": y})


def slopes(batch: ColumnBatch) -> None:
    """A slope with a prior, a level without one."""
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with batch.clients():
        w = pyro.param("w", lambda: torch.zeros(batch.num_clients, 1), event_dim=0)
        u = pyro.sample("u", dist.Normal(b, TAU))
        with batch.data():
            pyro.sample("y", dist.Normal(w + u * batch["x"], 1.0), obs=batch["y"])


def exact(df: pd.DataFrame) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Precision and mean of b with every level at its maximum; levels at b as a line: at 0, and by how much each moves.

    u integrated out, y_j is normal around w + b x with covariance 1 + tau^2 x x'.
    """
    precision, linear, at_zero, moves = 1 / 4, 0.0, [], []
    for _, own in df.groupby("site"):
        x, y = own["x"].to_numpy(), own["y"].to_numpy()
        inverse = np.linalg.inv(np.eye(len(x)) + TAU**2 * np.outer(x, x))
        design = np.column_stack([x, np.ones(len(x))])
        m, r = design.T @ inverse @ design, design.T @ inverse @ y
        precision += m[0, 0] - m[0, 1] ** 2 / m[1, 1]
        linear += r[0] - m[0, 1] / m[1, 1] * r[1]
        at_zero.append(r[1] / m[1, 1])
        moves.append(-m[0, 1] / m[1, 1])
    return precision, linear / precision, np.array(at_zero), np.array(moves)


def test_a_linear_gaussian_model_has_the_profile_likelihoods_posterior_in_two_rounds() -> None:
    """It is that of a flat prior of the levels, too: here profile and marginal likelihood differ by a constant."""
    fitted = fit_model(slopes, frame(), progress=False)
    precision, mean, at_zero, moves = exact(frame())
    shared = fitted.run.shared
    assert fitted.run.rounds == 2
    torch.testing.assert_close(shared[PRECISION], torch.tensor([[precision]]).double(), rtol=1e-9, atol=0)
    torch.testing.assert_close(shared[MEAN], torch.tensor([mean]).double(), rtol=1e-9, atol=0)
    b, w, u = fitted.globals["b"], fitted.clients["w"], fitted.clients["u"]
    np.testing.assert_allclose(w, at_zero + moves * b[:, None], rtol=1e-7, atol=1e-7)
    for j, (_, own) in enumerate(frame().groupby("site")):
        x, y = own["x"].to_numpy(), own["y"].to_numpy()
        variance = 1 / (x @ x + TAU**-2)
        away = (u[:, j] - variance * (x @ y - w[:, j] * x.sum() + b / TAU**2)) / variance**0.5
        assert abs(away.mean()) < 4.5 / 1000**0.5
        assert away.var() == pytest.approx(1, abs=4.5 * (2 / 1000) ** 0.5)
    assert fitted.summary().notes[0].startswith("points of each client, which move with the globals alone: w; ")


def test_what_is_made_of_a_fit_has_them() -> None:
    fitted, df = fit_model(slopes, frame(), progress=False), frame()
    _, mean, at_zero, moves = exact(df)
    table = fitted.client_table()
    np.testing.assert_allclose(table["w"], at_zero + moves * fitted.globals["b"].mean(), rtol=1e-7)
    np.testing.assert_allclose(table["w sd"], np.abs(moves) * fitted.globals["b"].std(), rtol=1e-6)
    assert fitted.posterior().posterior["w"].dims == ("chain", "draw", "client")
    row = df[df.site == "s2"].head(1).assign(x=0.0, y=0.0)
    assert fitted.predict(row)["mean"][row.index[0]] == pytest.approx(table["w"][2], abs=4.5 / 1000**0.5)
    drawn = fitted.prior_predictive(2000)["y"]
    spread = (1 + (4 + TAU**2) * df["x"] ** 2) ** 0.5
    expected = np.repeat(at_zero + moves * mean, N)
    assert (np.abs(drawn.mean(0) - expected) / spread).max() < 4.5 / 2000**0.5
    new = row.assign(site="new")
    with pytest.raises(UserError, match="client 'new' is new and has no value of pyro.param 'w'.*given=ITS_ROWS"):
        fitted.predict(new, new=True)
    given = df[df.site == "s4"].drop(columns="site")
    more = exact(pd.concat([df, given.assign(site="t")]))
    predictions = fitted.predict(new, given=given)
    assert predictions["mean"].item() == pytest.approx(more[2][-1] + more[3][-1] * more[1], abs=0.15)
    assert predictions["sd"].item() == pytest.approx((1 + more[3][-1] ** 2 / more[0]) ** 0.5, rel=0.1)


def lines(batch: ColumnBatch) -> None:
    """Whatever the slope b does, a client's own second number undoes."""
    b = pyro.sample("b", dist.Normal(0.0, 2.0))
    with batch.clients():
        with pyro.plate("terms", 2, dim=-3):
            w = pyro.param("w", lambda: torch.zeros(2, batch.num_clients, 1), event_dim=0)
        with batch.data():
            pyro.sample("y", dist.Normal(w[0] + (b + w[1]) * batch["x"], 1.0), obs=batch["y"])


def test_a_global_that_points_can_replace_keeps_its_prior() -> None:
    """With points that stayed where they are, b would be known to 0.1."""
    df = frame()
    fitted = fit_model(lines, df, progress=False)
    shared, b, w = fitted.run.shared, fitted.globals["b"], fitted.clients["w"]
    assert float(shared[PRECISION]) == pytest.approx(1 / 4, rel=1e-6)
    for j, (_, own) in enumerate(df.groupby("site")):
        slope, level = np.polyfit(own["x"], own["y"], 1)
        np.testing.assert_allclose(b + w[:, j, 1], slope, rtol=1e-7)
        np.testing.assert_allclose(w[:, j, 0], level, rtol=1e-7)


def counts() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    site, x = np.repeat(np.arange(8), 4), rng.normal(size=32)
    y = rng.poisson(np.exp(rng.normal(0.5, 0.5, 8)[site] - 0.4 * x)).astype(float)
    return pd.DataFrame({"site": [f"s{j}" for j in site], "x": x, "y": y})


def rates(batch: ColumnBatch) -> None:
    """Fixed effects of clients: a rate for each, without a prior."""
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with batch.clients():
        shape = batch.num_clients, 1
        rate = pyro.param("rate", lambda: torch.ones(shape), constraint=constraints.positive, event_dim=0)
        with batch.data():
            pyro.sample("y", dist.Poisson(rate * (b * batch["x"]).exp()), obs=batch["y"])


def profile(df: pd.DataFrame, b: np.ndarray) -> np.ndarray:
    """log p(y_j | b, rate) at each b and client, (B, J), where the rate is at its maximum: sum y / sum exp(b x)."""
    columns = []
    for _, own in df.groupby("site"):
        x, y = own["x"].to_numpy(), own["y"].to_numpy()
        rate = y.sum() / np.exp(np.outer(b, x)).sum(1)
        mean = rate[:, None] * np.exp(np.outer(b, x))
        columns.append((y * np.log(mean) - mean - gammaln(y + 1)).sum(1))
    return np.column_stack(columns)


@pytest.mark.cpu(4, "an exploration until its points are worth 4,000 draws")
def test_rates_as_fixed_effects_give_the_conditional_likelihoods_posterior() -> None:
    """Poisson counts given their sum are multinomial, which is the profile likelihood: by quadrature over b."""
    df = counts()
    fitted = fit_model(rates, df, worth=4000, draws=4000, points=2048, progress=False)
    grid = np.linspace(-2.5, 1.5, 4001)
    height = profile(df, grid).sum(1) - grid**2 / 2
    weight = np.exp(height - height.max())
    weight /= weight.sum()
    mean = (weight * grid).sum()
    sd = (weight * (grid - mean) ** 2).sum() ** 0.5
    worth = float(fitted.run.shared[WORTH])
    assert worth >= 4000
    assert abs(fitted.globals["b"].mean() - mean) / sd < 4 / worth**0.5
    assert fitted.globals["b"].std() / sd == pytest.approx(1, abs=4 / (2 * worth) ** 0.5)
    run, method = fitted.run, fitted.method
    assert isinstance(method, AnyModel)
    rows, at = list(range(8)), mean + sd * torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    chunk = ClientChunk(method, run.fitted.federation, rows, 1, 0, dict(run.shared), {
        name: value[:, None] for name, value in run.fitted.personal.items()
    })  # fmt: skip
    estimates = heights(method, chunk, at, 8, "test")
    assert float(estimates.variance.max()) < 1e-12
    torch.testing.assert_close(estimates.height, torch.from_numpy(profile(df, at[:, 0].numpy())), rtol=0, atol=1e-7)


def drifting(batch: ColumnBatch) -> None:
    """Points of two numbers beside a latent: nothing is quadratic."""
    beta = pyro.sample("beta", dist.Normal(0.0, 0.2))
    with batch.clients():
        w = pyro.param("w", lambda: torch.zeros(batch.num_clients, 1, 2), event_dim=1)
        u = pyro.sample("u", dist.Normal(beta, 0.3))
        with batch.data():
            level = w[..., 0] + u + 0.1 * w[..., 1] * batch["x"].square()
            pyro.sample("y", dist.Poisson(level.exp()), obs=batch["y"])


@pytest.mark.slow
@pytest.mark.cpu(6, "a fit on a plate, its second half again, and one at every site")
def test_they_stay_with_their_clients_and_are_the_same_on_every_engine(tmp_path: Path) -> None:
    method, federation = small(drifting)
    how: dict[str, Any] = {"rounds": 40, "splits": (), "dtype": torch.float64}
    whole = fit(method, federation, progress=False, chunk=1, **how)
    assert method.finished(whole.shared)
    fit(method, federation, progress=False, chunk=1, **{**how, "rounds": 3}, folder=tmp_path / "run")
    again = fit(method, federation, progress=False, chunk=1, **how, folder=tmp_path / "run", resume=True)
    sites = Sites(method, federation, tmp_path, **how)
    sent = set[str]()

    def ask(requests: Mapping[str, bytes]) -> dict[str, bytes]:
        answers = sites.ask(requests)
        for name, answer in answers.items():
            if decode(requests[name])[0]["kind"] == "round":
                tensors = decode(answer)[1]
                sent.update(k.removeprefix("posterior|") for k in tensors)
                assert sum(value.numel() for value in tensors.values()) == 7 + 1 + 1 + method.settings.points
        return answers

    other = sites.fit(ask)
    assert not any(name.startswith("own.") for name in sent | set(whole.shared))
    for shared, personal, within in (
        (again.shared, again.fitted.personal, 0.0), (other.shared, sites.values("personal"), 1e-9)
    ):  # fmt: skip
        for name, value in {**whole.shared, **whole.fitted.personal}.items():
            torch.testing.assert_close({**shared, **personal}[name], value, rtol=within, atol=within)
    assert (whole.fitted.personal[OWN_DRAWS][..., 2].std(1) > 0.05).all()


def test_points_that_rows_do_not_determine_stay_where_they_begin(caplog: pytest.LogCaptureFixture) -> None:
    df = frame()
    df["has"] = (df["site"] != "s3").astype(float)

    def model(batch: ColumnBatch) -> None:
        b = pyro.sample("b", dist.Normal(0.0, 2.0))
        with batch.clients():
            w = pyro.param("w", lambda: torch.full((batch.num_clients, 1), 0.25), event_dim=0)
            u = pyro.sample("u", dist.Normal(b, TAU))
            with batch.data():
                pyro.sample("y", dist.Normal(w * batch["has"] + u * batch["x"], 1.0), obs=batch["y"])

    with caplog.at_level(logging.WARNING, logger="hierfl"):
        fitted = fit_model(model, df, progress=False)
    assert "the rows of 1 of 6 clients say nothing of pyro.param 'w'" in caplog.text
    assert fitted.clients["w"][:, 3] == pytest.approx(0.25, abs=1e-12)
    rest = df[df["site"] != "s3"]
    precision, mean, *_ = exact(rest)
    own = df[df["site"] == "s3"]
    inverse = np.linalg.inv(np.eye(N) + TAU**2 * np.outer(own["x"], own["x"]))
    more = own["x"] @ inverse @ own["x"]
    assert float(fitted.run.shared[PRECISION]) == pytest.approx(precision + more, rel=1e-9)
    linear = precision * mean + own["x"] @ inverse @ own["y"]
    assert float(fitted.run.shared[MEAN]) == pytest.approx(linear / (precision + more), rel=1e-9)


class Own(PyroModule):
    """A parameter of a module, read within the plate of clients."""

    def __init__(self, event_dim: int | None) -> None:
        super().__init__()
        self.w = PyroParam(torch.zeros(1, 1, dtype=torch.float64), event_dim=event_dim)

    def forward(self, batch: ColumnBatch) -> None:
        with batch.clients():
            u = pyro.sample("u", dist.Normal(self.w, 1.0))
            with batch.data():
                pyro.sample("y", dist.Normal(u, 1.0), obs=batch["y"])


def test_a_modules_parameter_is_everyones() -> None:
    fitted = fit_model(Own(None), frame(), progress=False)
    assert list(fitted.globals) == ["w"]
    with pytest.raises(UserError, match="pyro.param 'w' of a module is everyone's: leave event_dim out"):
        fit_model(Own(0), frame(), progress=False)


def test_what_needs_a_prior_is_refused() -> None:
    with pytest.raises(UserError, match="pyro.param 'w' of the model has no prior: beside a guide"):
        fit_model(slopes, frame(), client_guide="normal", progress=False)
    method, _ = small(drifting)
    with pytest.raises(UserError, match="pyro.param 'w' has no prior to simulate from"):
        simulate(drifting, method.sites, method.network, [torch.zeros(2, 3)], {"y": "y"}, 2, 0)
