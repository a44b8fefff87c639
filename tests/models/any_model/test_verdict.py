"""What an exploration says of itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from support.any_model_fits import SCHOOLS, centred, fitted
from support.verdict.explorations import Density, explore, funnel, gaussian, horseshoe, permuted
from support.verdict.models import CASES
from support.verdict.referees import OFF, off

import hierfl
from hierfl.data.column_batch import ColumnBatch
from hierfl.inference.server.explored import Explored
from hierfl.models.any_model.verdict import MIN_DRAWS, Verdict, verdict
from hierfl.pareto import k_hat

GOOD = Verdict(points=1000.0, k_hat=0.3, worth=600.0, noise=0.1, clients=8.0, inner=32.0)


@pytest.mark.parametrize(
    ("more", "says"),
    [({"k_hat": 0.69}, "k-hat 0.69, above 0.67"), ({"proposals": 1.2}, "two proposals"), ({"heavy": 2.0}, "2 of 8"),
     ({"centrings": 1.0}, "1 of 8 clients two proposals"), ({"noise": 0.6}, "0.60, above 0.5"),
     ({"share": 0.3}, "30% of those"), ({"worth": 99.0}, "worth 99 independent draws")],
)  # fmt: skip
def test_each_doubt_is_a_line(more: dict[str, float], says: str) -> None:
    assert GOOD.warnings == []
    (line,) = Verdict(**{**GOOD.__dict__, **more}).warnings
    assert says in line


def test_values_are_read_again_and_overlap_is_called_no_certificate() -> None:
    assert Verdict.read({"posterior.verdict": GOOD.values}) == GOOD
    assert "no certificate" in GOOD.lines()[0]
    assert "nothing was explored" in Verdict().lines()[0]


@pytest.mark.parametrize(
    ("noise", "last", "inner"),
    [(0.05, False, 32), (0.15, False, 64), (5.0, False, 256), (0.005, True, 32), (0.02, True, 128)],
)
def test_clients_draw_more_where_their_estimates_are_noisy(noise: float, last: bool, inner: float) -> None:
    assert GOOD.next_inner(noise, last=last) == inner


@pytest.mark.parametrize("numbers", [1, 3, 8, 25])
def test_of_a_normal_posterior_the_points_have_the_share_that_is_known(numbers: int) -> None:
    assert explore(gaussian, numbers, each=8192, rounds=1)[0].share == pytest.approx(1.0, abs=0.02)
    assert explore(gaussian, numbers)[0].warnings == []


def test_noise_of_clients_that_draw_little_at_first_is_no_tail_of_the_posterior() -> None:
    diagnosis, explored = explore(gaussian, 2, inner=(2.0, 2.0, 128.0), spread=0.45, worth=1100.0)
    assert float(k_hat(explored.log_weights(0))) > diagnosis.limit
    assert diagnosis.quiet == 2
    assert diagnosis.warnings == []
    noisy, _ = explore(gaussian, 2, inner=(2.0,), spread=1.0)  # it does not end
    assert noisy.k_hat > noisy.limit


@pytest.mark.parametrize(("density", "numbers"), [(funnel, 6), (horseshoe, 13), (permuted, 3)])
def test_funnels_shrinkage_and_exchanged_names_are_warned_of(density: Density, numbers: int) -> None:
    """k-hat alone is below its limit in all three."""
    diagnosis, _ = explore(density, numbers)
    assert diagnosis.k_hat < diagnosis.limit
    assert "few of the points count" in diagnosis.warnings[0]


def test_noise_at_points_that_are_wide_on_purpose_is_not_that_at_the_posterior() -> None:
    explored = Explored.begin(1, 16, 3, torch.zeros(1, dtype=torch.float64))
    before, noise = Verdict(), (0.05, 1.0, 0.8)
    kept = []
    for k in range(3):
        explored = explored.drawn(torch.zeros(1).double(), torch.eye(1).double(), 0, k).with_heights(
            torch.zeros(16).double()
        )
        before = verdict(explored, noise[k], 8.0, (4.0, 0.0, 0.0), before)
        kept.append(before.noise)
    assert kept == [0.05, 0.05, 0.8]


@pytest.mark.cpu(5, "a fit")
def test_a_funnel_of_clients_with_few_points_is_wrong_and_warned_of() -> None:
    """Eight schools in a text that stays centred."""
    case = CASES["held, few points"]
    df = case.data(0)
    fit = hierfl.fit_model(case.model, df, progress=False, **case.settings)
    assert off("held, few points", df, fit.run.shared["posterior.draws"]) > OFF
    assert fit.verdict.worth < MIN_DRAWS
    assert any("too few to tell" in line for line in fit.verdict.warnings)


def two_modes(batch: ColumnBatch) -> None:
    """The sign of a client's latent is not known."""
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with batch.clients():
        u = pyro.sample("u", dist.Normal(mu, 3.0))
        with batch.data():
            pyro.sample("y", dist.Normal(u.abs(), 0.3), obs=batch["y"])


@pytest.mark.cpu(5, "a fit")
def test_latents_with_two_modes_are_warned_of() -> None:
    df = pd.DataFrame({"site": [f"s{j}" for j in range(6)], "y": [1.0, 2.0, 0.9, 1.6, 2.2, 1.2]})
    run, _, _ = fitted(two_modes, df, explored_rounds=3, points=256, draws=50)
    assert Verdict.read(run.shared).warnings


@pytest.mark.cpu(4, "a fit")
def test_beyond_the_most_globals_nothing_is_explored() -> None:
    run, _, _ = fitted(centred, SCHOOLS, most_globals=1, draws=50)
    assert "nothing was explored" in Verdict.read(run.shared).lines()[0]
    assert torch.isfinite(run.shared["posterior.draws"]).all()


@pytest.mark.cpu(4, "a fit")
def test_a_proposal_that_is_wrong_itself_is_no_second_opinion() -> None:
    """Counts of 100,000: in the non-centred form a client's latent is no line in the globals, by far."""

    def model(batch: ColumnBatch) -> None:
        m, tau = pyro.sample("m", dist.Normal(0.0, 20.0)), pyro.sample("tau", dist.HalfNormal(1.0))
        with batch.clients():
            u = pyro.sample("u", dist.Normal(m, tau))
            with batch.data():
                pyro.sample("y", dist.Poisson(u.exp()), obs=batch["y"])

    rng = np.random.default_rng(0)
    counts = rng.poisson(1e5 * np.exp(0.3 * rng.normal(size=8)).repeat(10)).astype(float)
    df = pd.DataFrame({"site": np.repeat(list("abcdefgh"), 10), "y": counts})
    fit = hierfl.fit_model(model, df, progress=False, worth=100)
    assert fit.verdict.centrings == 0
    assert len(fit.verdict.lines()) == 1
