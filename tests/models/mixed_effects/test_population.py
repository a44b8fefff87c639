"""What is climbed and explored: coordinates, priors, Newton's method, importance sampling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from support.mixed import fitted, table
from torch.distributions import LKJCholesky

from hierfl import UserError
from hierfl.inference.server.explored import Explored, log_proposal, systematic
from hierfl.models.mixed_effects.method import MixedEffects
from hierfl.models.mixed_effects.model.covariance import Covariance
from hierfl.models.mixed_effects.model.prior_text import log_density, read
from hierfl.models.mixed_effects.search.climb import INFINITE_LENGTH, Climb, newton_step
from hierfl.models.mixed_effects.search.priors import Priors
from hierfl.rng import generator


def draws(*shape: int, what: str = "draws") -> torch.Tensor:
    return torch.randn(shape, generator=generator(what), dtype=torch.float64)


@pytest.mark.parametrize("blocks", [(1,), (3,), (2, 1, 2)])
def test_entries_and_coordinates_are_of_one_covariance(blocks: tuple[int, ...]) -> None:
    c = Covariance(blocks)
    entries = c.upright(draws(5, c.entries))
    root = c.matrix(entries)
    assert torch.equal(c.of_matrix(root), entries)
    assert (root.diagonal(dim1=-2, dim2=-1) > 0).all()
    raw = draws(5, c.entries)
    sigma = c.matrix(raw) @ c.matrix(raw).mT
    assert torch.allclose(c.matrix(c.upright(raw)) @ c.matrix(c.upright(raw)).mT, sigma, atol=1e-14)
    at = 0.5 * draws(5, c.entries)
    assert torch.allclose(c.coordinates(c.of_coordinates(at)), at, atol=1e-10)
    sd = c.matrix(c.of_coordinates(at)).norm(dim=-1)
    assert torch.allclose(sd.log(), at[:, : c.q], atol=1e-12)
    assert len(c.pairs) == c.entries - c.q
    for i, k in itertools.combinations(range(c.q), 2):
        if (i, k) not in c.pairs:
            assert (sigma[:, i, k] == 0).all()


def test_the_density_of_a_correlation_is_lkjs() -> None:
    """Of two effects uniform in the correlation for concentration 1, (1 - r^2)^(eta - 1) else; here of atanh r."""
    c, y = Covariance((2,)), torch.linspace(-2, 2, 9).double()
    at = torch.stack([torch.zeros(9).double(), torch.zeros(9).double(), y], -1)
    r = y.tanh()
    for eta in (1.0, 3.0):
        wanted = eta * (1 - r.square()).log() - math.log(2) - math.lgamma(eta) * 2 + math.lgamma(2 * eta)
        wanted = wanted - (2 * eta - 2) * math.log(2)
        assert torch.allclose(c.log_lkj(at, eta), wanted, atol=1e-10), eta
    # of three by their distribution's own factor density and a numerical Jacobian
    c, at = Covariance((3,)), torch.cat([torch.zeros(3), torch.tensor([0.3, -0.5, 0.2])]).double()
    below = lambda v: c.matrix(c.of_coordinates(torch.cat([at[:3], v])))[[1, 2, 2], [0, 0, 1]]  # noqa: E731
    jacobian = torch.autograd.functional.jacobian(below, at[3:])
    factor = LKJCholesky(3, torch.tensor(2.0).double()).log_prob(c.matrix(c.of_coordinates(at)))
    assert float(c.log_lkj(at, 2.0)) == pytest.approx(float(factor + jacobian.det().abs().log()), rel=1e-10)


@pytest.mark.parametrize(
    ("text", "density"),
    [
        ("half-t(3, 2)", stats.t(3, scale=2).pdf), ("half-cauchy(5)", stats.cauchy(scale=5).pdf),
        ("half-normal(2)", stats.norm(scale=2).pdf), ("gamma(2, 0.5)", stats.gamma(2, scale=2).pdf),
    ],
)  # fmt: skip
def test_priors_are_read_as_they_are_written(text: str, density) -> None:
    x = np.linspace(0.1, 9, 7)
    log_prior = log_density(*read("sd_prior", text), torch.tensor(x)).numpy()
    gap = log_prior - np.log(density(x))
    np.testing.assert_allclose(gap, gap[0], atol=1e-12)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("sd_prior", "normal(0, 1)"), ("sd_prior", "half-t(3)"), ("sd_prior", "half-cauchy(-1)"), ("sd_prior", "x"),
        ("beta_prior", "normal(0)"), ("beta_prior", "normal(0, 0)"), ("intercept_prior", "normal(0, nan)"),
        ("intercept_prior", "__import__('os')"), ("residual_prior", "half-cauchy(1e300)"),
    ],
)  # fmt: skip
def test_what_is_no_prior_is_refused(setting: str, text: str) -> None:
    run = fitted(table(4), "y ~ x + (1 | site)", rounds=1)
    with pytest.raises(UserError, match=f"{setting} is "):
        MixedEffects(run.fitted.method.network, population="bayes", **{setting: text})


def test_priors_are_in_the_tables_units() -> None:
    """A column in other units, and a prior that says so: the same density of the same thing."""
    df = table(6)
    priors = []
    for scale in (1.0, 50.0):
        design = fitted(df.assign(x=scale * df.x), "y ~ x + (1 + x | site)", rounds=1).fitted.method.network
        how = {"beta_prior": f"normal(0, {2 / scale})", "sd_prior": f"half-cauchy({3 / scale})"}
        priors.append(Priors(MixedEffects(design, population="bayes", **how)))
    beta = [prior.beta() for prior in priors]
    assert torch.allclose(beta[0][1][1], beta[1][1][1], rtol=1e-12)
    at = torch.tensor([0.0, 0.4, 0.1]).double()
    slopes = []
    for prior in priors:
        point = at.clone().requires_grad_()
        slopes.append(torch.autograd.grad(prior.covariance(point, "root"), point)[0])
    assert torch.allclose(slopes[0][1:], slopes[1][1:], rtol=1e-9)  # of the intercept's sd the scale differs


def test_a_climb_ends_at_the_maximum_and_never_goes_down() -> None:
    """Of a function with a saddle and flat far tails, from several starts."""

    def f(v: torch.Tensor) -> torch.Tensor:
        return -((1 - v[0]).square() + 20 * (v[1] - v[0].square()).square() + 1).log() - 0.1 * (v[2] ** 2 - 1).square()

    for start in ([-1.5, 2.0, 0.1], [0.0, 0.0, 3.0], [30.0, -40.0, 0.01]):
        climb = Climb.begin(torch.tensor(start).double(), torch.full((3,), INFINITE_LENGTH).double())
        heights = []
        for _ in range(80):
            at = climb.next
            slope = torch.autograd.functional.jacobian(f, at)
            climb = climb.updated(f(at), slope, -torch.autograd.functional.hessian(f, at))
            heights.append(float(climb.height))
            if climb.arrived(1e-9):
                break
        assert climb.arrived(1e-9), start
        assert torch.allclose(climb.best.abs(), torch.ones(3).double(), atol=1e-6)
        assert np.all(np.diff(heights) >= -1e-10)


def test_newtons_step_on_a_quadratic_is_the_whole_way() -> None:
    a, g = draws(4, 4), draws(4, what="g")
    units = torch.tensor([1e-6, 1.0, 1e3, 1e6]).double()
    c = (a @ a.T + torch.eye(4)) * units[:, None] * units
    step, length = newton_step(g * units, c, torch.tensor(1e9).double())
    wanted = torch.linalg.solve(a @ a.T + torch.eye(4), g) / units
    assert torch.allclose(step, wanted, rtol=1e-8)
    assert float(length) == pytest.approx(math.sqrt(float(g @ torch.linalg.solve(a @ a.T + torch.eye(4), g))), rel=1e-8)
    short, _ = newton_step(g * units, c, torch.tensor(0.1, dtype=torch.float64))
    assert float((short @ c @ short).sqrt()) == pytest.approx(0.1, rel=1e-9)
    assert newton_step(g * units, -c, torch.tensor(1.0).double())[1] == INFINITE_LENGTH


def test_exploring_finds_the_moments_of_what_it_explores() -> None:
    """A skewed, correlated density with known moments: log of a gamma, and a normal around it."""
    shape = 3.0

    def log_density_of(v: torch.Tensor) -> torch.Tensor:
        return shape * v[:, 0] - v[:, 0].exp() - 0.5 * (v[:, 1] - 2 * v[:, 0]).square()

    mean = float(torch.digamma(torch.tensor(shape)))
    variance = float(torch.polygamma(1, torch.tensor(shape)))
    start = torch.tensor([math.log(shape), 2 * math.log(shape)]).double()
    root = torch.linalg.cholesky(torch.tensor([[1 / shape, 2 / shape], [2 / shape, 4 / shape + 1]]).double())
    explored = Explored.begin(2, 512, 4, start).drawn(start, root, 1, 7)
    for seed in (8, 9, 10):
        explored = explored.with_heights(log_density_of(explored.asked))
        if explored.done < 4:
            explored = explored.drawn(*explored.moments(1), 1, seed)
    explored = explored.with_heights(log_density_of(explored.asked))
    assert explored.effective(1) > 1000
    centre, factor = explored.moments(1)
    covariance = factor @ factor.T
    wanted = torch.tensor([[variance, 2 * variance], [2 * variance, 4 * variance + 1]]).double()
    assert torch.allclose(centre, torch.tensor([mean, 2 * mean]).double(), atol=0.03 * math.sqrt(variance))
    assert torch.allclose(covariance, wanted, rtol=0.05)


def test_what_points_are_drawn_from_has_the_density_that_is_said() -> None:
    """Importance weights of a density over itself: the mean of exp(log p - log q) is one, for a normal within."""
    root = torch.tensor([[1.0, 0.0], [0.7, 0.5]]).double()
    centre = torch.tensor([0.3, -1.0]).double()
    explored = Explored.begin(2, 4096, 1, centre).drawn(centre, root, 1, 3)
    points = explored.asked
    normal = torch.distributions.MultivariateNormal(centre, scale_tril=root).log_prob(points)
    ratio = (normal - log_proposal(points, explored.centres[0], explored.roots[0], 1)).exp()
    assert float(ratio.mean()) == pytest.approx(1, abs=0.01)


def test_every_point_comes_as_often_as_its_weight_says() -> None:
    logs = draws(40, what="weights").log_softmax(0)
    places = systematic(logs, 1000, 5)
    counts = torch.bincount(places, minlength=40)
    assert ((counts - 1000 * logs.exp()).abs() < 1).all()
    assert torch.equal(places, systematic(logs, 1000, 5))
