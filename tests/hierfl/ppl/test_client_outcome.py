"""Location and scale of a client's responses: posterior and evidence beside quadrature in two dimensions, and lme4."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.models.pfedhb.outcome import OutcomePopulation
from hierfl.models.pfedhb.turns import Turns
from hierfl.ppl.client_outcome import Given, Population, Residuals

NU, TAU, MU, OMEGA, SD = 0.3, 0.7, -0.2, 0.4, 1.3


def population(tau: float = TAU, omega: float = OMEGA) -> Population:
    """Of known numbers."""
    location = torch.tensor([NU, MU], dtype=torch.float64)
    return Population(location, torch.tensor([tau, omega], dtype=torch.float64).log())


def given(r: torch.Tensor, **numbers: float) -> Given:
    """The posterior of one client with these residuals."""
    return population(**numbers).given(Residuals.from_residuals(r[None], torch.tensor([SD], dtype=torch.float64), None))


@pytest.mark.parametrize("n", [1, 3, 40])
def test_the_posterior_is_that_of_a_grid_in_two_dimensions(n: int) -> None:
    r = 1.5 * torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) + 1
    m, log_s = np.meshgrid(np.linspace(-5, 5, 401), np.linspace(-4.2, 3.8, 401), indexing="ij")
    cell = 10 / 400 * 8 / 400

    def log_normal(z: np.ndarray, sd: np.ndarray | float) -> np.ndarray:
        return -0.5 * (z / sd) ** 2 - np.log(sd) - 0.5 * math.log(2 * math.pi)

    log_p = log_normal(m - NU, TAU) + log_normal(log_s - MU, OMEGA)
    log_p = log_p + sum(log_normal(float(x) - m, SD * np.exp(log_s)) for x in r)
    p = np.exp(log_p) * cell
    means = [(p * v).sum() / p.sum() for v in (m, log_s)]
    sds = [math.sqrt((p * (v - c) ** 2).sum() / p.sum()) for v, c in zip((m, log_s), means, strict=True)]
    posterior = given(r)
    assert float(posterior.log_evidence) == pytest.approx(math.log(p.sum()), abs=1e-8)
    assert posterior.mean[0].tolist() == pytest.approx(means, abs=1e-8)
    assert posterior.sd[0].tolist() == pytest.approx(sds, abs=1e-8)
    generator = torch.Generator().manual_seed(0)
    u, z = torch.rand(20_000, 1, generator=generator).double(), torch.randn(20_000, 1, generator=generator).double()
    drawn = posterior.draws(u, z)[:, 0]
    assert drawn.mean(0).tolist() == pytest.approx(means, abs=0.02)
    assert drawn.std(0).tolist() == pytest.approx(sds, rel=0.03)


def test_the_score_is_the_gradient_of_the_evidence_and_nothing_is_known_of_no_rows() -> None:
    r = torch.tensor([0.4, 2.1, -1.3, 3.0], dtype=torch.float64)
    location = torch.tensor([NU, MU], dtype=torch.float64, requires_grad=True)
    log_scale = torch.tensor([TAU, OMEGA], dtype=torch.float64).log().requires_grad_()
    residuals = Residuals.from_residuals(r[None], torch.tensor([SD], dtype=torch.float64), None)
    posterior = Population(location, log_scale).given(residuals)
    of_location, of_scale = torch.autograd.grad(posterior.log_evidence.sum(), [location, log_scale])
    expected = [of_location[0], of_scale[0], of_location[1], of_scale[1]]
    assert posterior.score[0].tolist() == pytest.approx([float(v) for v in expected], abs=1e-8)
    no_rows = torch.zeros(1, 4, dtype=torch.bool)
    none = population().given(Residuals.from_residuals(r[None], torch.tensor([SD], dtype=torch.float64), no_rows))
    assert none.mean[0].tolist() == pytest.approx([NU, MU], abs=1e-8)
    assert none.sd[0].tolist() == pytest.approx([TAU, OMEGA], abs=1e-8)
    assert float(none.log_evidence) == pytest.approx(0, abs=1e-8)
    assert none.score[0].tolist() == pytest.approx([0] * 4, abs=1e-8)
    assert none.information[0].tolist() == [0] * 4


def test_far_away_rows_and_residuals_without_spread_have_a_posterior() -> None:
    n = torch.tensor([5.0, 100_000.0, 3.0, 1.0]).double()
    mean, squares = torch.tensor([50.0, 0.001, 0, 100]).double(), torch.tensor([1.0, 4e7, 3e-12, 0]).double()
    posterior = population().given(Residuals(n, mean, squares, torch.zeros(4).double()))
    numbers = (posterior.mean, posterior.sd, posterior.score, posterior.information)
    assert all(bool(value.isfinite().all()) for value in numbers)
    assert float(posterior.mean[1, 1]) == pytest.approx(0.5 * math.log(400), abs=1e-3)
    assert float(posterior.sd[1, 1]) == pytest.approx((2e5) ** -0.5, rel=1e-3)
    assert posterior.mean[2, 1] < MU


#: rows of six clients, and their means
SIZES, MEANS = (3, 5, 2, 8, 4, 6), (1.2, -0.4, 0.9, 0.1, -1.1, 0.6)


def known_residuals() -> list[np.ndarray]:
    """Rows of each client with these means, all with the same standard deviation of 0.5."""
    rows = []
    for n, centre in zip(SIZES, MEANS, strict=True):
        z = np.arange(n) - (n - 1) / 2
        rows.append(centre + 0.5 * z / z.std(ddof=1))
    return rows


def test_where_scales_do_not_differ_it_is_a_random_intercept_model() -> None:
    """Beside lme4 1.1-31, maximum likelihood.

    n <- c(3, 5, 2, 8, 4, 6); m <- c(1.2, -0.4, 0.9, 0.1, -1.1, 0.6)
    r <- unlist(Map(function(n, m) { z <- 1:n - (n + 1) / 2; m + 0.5 * z / sd(z) }, n, m)); g <- rep(1:6, n)
    library(lme4); a <- lmer(r ~ 1 + (1 | g), REML = FALSE, control = lmerControl(optCtrl = list(xtol_abs = 1e-12,
      ftol_abs = 1e-14))); fixef(a); VarCorr(a); logLik(a); b <- ranef(a, condVar = TRUE)$g; fixef(a) + b[, 1]
    sqrt(attr(b, "postVar"))
    """
    rows = known_residuals()
    widest = max(SIZES)
    r = torch.tensor(np.stack([np.pad(v, (0, widest - len(v))) for v in rows]))
    mask = torch.arange(widest) < torch.tensor(SIZES)[:, None]
    residuals = Residuals.from_residuals(r, torch.full((6,), 2.0).double(), mask)
    rule, kept = OutcomePopulation("outcome", Turns()), {}
    state = {"outcome.location": torch.zeros(2).double(), "outcome.log_scale": torch.tensor([0.5, 0.3]).double().log()}
    for number in range(25):
        posterior = Population(state["outcome.location"], state["outcome.log_scale"]).given(residuals)
        total = {"score": posterior.score.sum(0), "information": posterior.information.sum(0)}
        context = AggregationContext(6, torch.tensor(6), number + 1, lambda names: {}, kept, state)
        state = rule.update(state, total, context)
    posterior = Population(state["outcome.location"], state["outcome.log_scale"]).given(residuals)
    assert float(state["outcome.location"][0]) == pytest.approx(0.1993263938, abs=1e-5)
    assert float(state["outcome.log_scale"][0].exp()) == pytest.approx(0.7321689195, abs=1e-5)
    assert float(2 * state["outcome.location"][1].exp()) == pytest.approx(0.5009695517, abs=1e-5)
    assert float(state["outcome.log_scale"][1].exp()) < 1e-3  # the floor: no client's scale is another
    assert float(posterior.log_evidence.sum()) == pytest.approx(-27.3263105, abs=1e-4)
    means = [1.0649195113, -0.3486876649, 0.7670949645, 0.1054913026, -0.9638589731, 0.5709992222]
    sds = [0.2690056355, 0.2142350260, 0.3188776846, 0.1721538119, 0.2369990853, 0.1969793702]
    assert posterior.mean[:, 0].tolist() == pytest.approx(means, abs=1e-5)
    assert posterior.sd[:, 0].tolist() == pytest.approx(sds, abs=1e-5)
