"""Step control of the server's climb, and of the clients' part."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_model_fits import SCHOOLS, counts, fitted, table_of_counts
from torch import Tensor

import hierfl
from hierfl import UserError
from hierfl.data.column_batch import ColumnBatch
from hierfl.models.any_model.guide import NOISE, PATIENCE, Climb
from hierfl.models.any_model.local import kept_definite
from hierfl.models.any_model.names import MEAN, PHASE, PRECISION, Phase


def at(bound: float, climb: Climb | None = None) -> Climb:
    mean, precision = torch.zeros(1).double(), torch.eye(1).double()
    climb = Climb.begin(mean, precision) if climb is None else climb
    return climb.after(torch.tensor(bound).double(), mean + 1, 2 * precision, exact=False, numbers=2.0)


def test_a_fall_within_the_noise_is_no_loss_and_one_beyond_is_taken_back() -> None:
    first = at(-3.0)
    kept, lost = at(-3.0 - NOISE, first), at(-4.0, first)
    assert kept.mean > first.mean
    assert (lost.mean, float(lost.share)) == (first.mean, 0.5)


def test_a_bound_that_is_not_finite_is_refused_at_the_start_and_taken_back_later() -> None:
    with pytest.raises(UserError, match="not finite where the fit begins"):
        at(float("nan"))
    climb = at(-3.0)
    for _ in range(10):
        climb = at(float("nan"), climb)
    assert climb.guide()[0] == climb.mean


def test_a_climb_that_gains_nothing_ends() -> None:
    climb = at(-3.0)
    for _ in range(PATIENCE):
        assert not climb.converged
        climb = at(-3.0, climb)
    assert climb.converged


def linear(batch: ColumnBatch, of: Any = dist.Normal) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 100.0))
    with batch.clients():
        theta = pyro.sample("theta", dist.Normal(mu, 3.0))
        with batch.data():
            pyro.sample("y", of(theta, batch["se"]), obs=batch["y"])


def test_a_linear_model_far_from_its_start_is_exact_after_two_rounds() -> None:
    df = SCHOOLS.assign(y=SCHOOLS.y + 1000)
    run, _, _ = fitted(linear, df)
    w = 1 / (df.se**2 + 9)
    assert run.rounds == 2
    assert float(run.shared[MEAN]) == pytest.approx((w * df.y).sum() / (w.sum() + 1e-4), rel=1e-9)
    assert float(run.shared[PRECISION]) == pytest.approx(w.sum() + 1e-4, rel=1e-9)


@pytest.mark.slow
@pytest.mark.cpu(6, "a climb of many rounds")
def test_a_density_with_a_kink_is_not_taken_for_a_quadratic() -> None:
    """Its second derivative is the same at all draws: a fit ended after two rounds, and was called exact."""
    run, _, _ = fitted(partial(linear, of=dist.Laplace), SCHOOLS, reweigh=False)
    assert run.rounds > 3


@pytest.mark.cpu(6, "three fits of a climb")
@pytest.mark.parametrize(
    ("clients", "rows"), [(3, 5), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((5, 20), (20, 2)))]
)
def test_few_clients_and_few_rows_arrive(clients: int, rows: int) -> None:
    """The climb never came to an end with these: noise of the bound was taken for a loss."""
    run, _, _ = fitted(counts, table_of_counts(clients, rows), reweigh=False)
    assert int(run.shared[PHASE]) == Phase.DONE
    assert run.rounds < 40


@pytest.mark.cpu(5, "two fits")
def test_noise_of_the_draws_moves_means_by_less_than_a_fiftieth_of_a_standard_deviation() -> None:
    df = table_of_counts(8, 10)
    means: list[Tensor] = []
    for seed in (0, 1):
        run, _, _ = fitted(counts, df, seed=seed, reweigh=False)
        means.append(run.shared[MEAN])
    sd = torch.linalg.inv(run.shared[PRECISION]).diagonal().sqrt()
    assert np.abs((means[0] - means[1]) / sd).max() < 2**0.5 * 0.02


@pytest.mark.cpu(4, "two fits, of 29 and 35 rounds")
@pytest.mark.parametrize(
    ("start", "sd", "mean"),
    [pytest.param(50.0, 30.0, 3.0, id="above", marks=pytest.mark.slow), pytest.param(0.0, 20.0, 1e5, id="below")],
)
def test_rates_are_found_many_orders_of_magnitude_from_the_start(start: float, sd: float, mean: float) -> None:
    """exp(50) for counts of 3, 1 for counts of 100,000: the log rate's posterior is about that of the sample means."""

    def model(batch: ColumnBatch) -> None:
        m = pyro.sample("m", dist.Normal(start, sd))
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with batch.clients():
            u = pyro.sample("u", dist.Normal(m, tau))
            with batch.data():
                pyro.sample("y", dist.Poisson(u.exp()), obs=batch["y"])

    rng = np.random.default_rng(0)
    rates = mean * np.exp(0.3 * rng.normal(size=8))
    df = pd.DataFrame({"site": np.repeat(list("abcdefgh"), 10), "y": rng.poisson(np.repeat(rates, 10)).astype(float)})
    fit = hierfl.fit_model(model, df, progress=False)
    assert fit.arrived
    assert fit.globals["m"].mean() == pytest.approx(np.log(df.groupby("site")["y"].mean()).mean(), abs=0.05)
    near = 0.01 if mean > 100 else 0.3  # 30 events of a site are drawn to the others' mean
    np.testing.assert_allclose(fit.clients["u"].mean(0), np.log(df.groupby("site")["y"].mean()), atol=near)


def test_what_is_kept_definite_does_not_depend_on_units() -> None:
    """A large curvature beside a small one is definite; of another its eigenvalues' sizes are kept."""
    old = torch.eye(2, dtype=torch.float64)
    for new in (torch.tensor([[1e22, 1e5], [1e5, 1.0]]), torch.tensor([[1e-22, 0.0], [0.0, 1.0]])):
        torch.testing.assert_close(kept_definite(old, new.double()), new.double(), rtol=0, atol=0)
    kept = kept_definite(old, torch.tensor([[-1e22, 0.0], [0.0, 0.0]]).double())
    torch.testing.assert_close(kept, torch.tensor([[1e22, 0.0], [0.0, 0.5]]).double())
