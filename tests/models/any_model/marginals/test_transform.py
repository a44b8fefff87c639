"""Algebra of the marginal transforms: beside numerical integration, finite differences and Fisher's information."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from hierfl.models.any_model.marginals.expected import log_slope, metric
from hierfl.models.any_model.marginals.sums import by_shape
from hierfl.models.any_model.marginals.transform import (
    MOST_SKEW,
    MOST_TAIL,
    Marginals,
    gaussian,
    shape_error,
    unconstrained,
)

#: centre, scale, skew and tail
SHAPES = [(0.0, 1.0, 0.0, 0.0), (2.0, 0.3, -0.7, 0.2), (-40.0, 12.0, 2.0, -1.0), (0.1, 1.0, 0.4, 1.0)]


def marginals(*shapes: tuple[float, ...]) -> Marginals:
    """Of one number each."""
    return Marginals.unpacked(torch.tensor(shapes, dtype=torch.float64).T)


def test_no_skew_and_no_tail_are_the_identity() -> None:
    x = torch.linspace(-30, 30, 61, dtype=torch.float64)[:, None]
    of = marginals((1.5, 2.0, 0.0, 0.0))
    torch.testing.assert_close(of(x), x, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(of.log_slope(x), torch.zeros_like(x), rtol=0, atol=1e-12)
    assert Marginals.read({}) is None
    assert Marginals.read({"posterior.shape": of.packed}) is None
    assert torch.equal(unconstrained(None, x), x)
    assert torch.equal(gaussian(None, x), x)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_has_an_inverse_a_slope_and_leaves_mean_and_variance(shape: tuple[float, ...]) -> None:
    """Of x ~ N(centre, scale^2); integrals by scipy."""
    centre, scale, skew, tail = shape
    of = marginals(shape)
    x = (centre + scale * torch.linspace(-8, 8, 81, dtype=torch.float64))[:, None].requires_grad_()
    z = of(x)
    torch.testing.assert_close(of.inverse(z), x, rtol=1e-9, atol=1e-9 * scale)
    (slope,) = torch.autograd.grad(z.sum(), x)
    torch.testing.assert_close(of.log_slope(x), slope.log(), rtol=1e-9, atol=1e-9)

    def moment(power: int) -> float:
        def weighted(u: float) -> float:
            at = torch.tensor([centre + scale * u], dtype=torch.float64)
            return float((of(at) - centre) / scale) ** power * float(stats.norm.pdf(u))

        return integrate.quad(weighted, -12, 12, epsabs=1e-12, limit=200)[0]

    assert moment(1) == pytest.approx(0, abs=1e-9)
    assert moment(2) == pytest.approx(1, abs=1e-9)
    shapes = np.sinh(np.exp(tail) * np.arcsinh([-1.0, 0.0, 1.0]) + skew)  # Jones and Pewsey's own form
    at = of(centre + scale * torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64))[:, 0].numpy()
    assert (at[2] - at[1]) / (at[1] - at[0]) == pytest.approx((shapes[2] - shapes[1]) / (shapes[1] - shapes[0]))


def test_expected_log_slopes_and_their_derivatives() -> None:
    """Under normals that are not those of the centres: heights by scipy, derivatives by differences of heights."""
    shapes, mean, sd = SHAPES[1:3], torch.tensor([2.1, -37.0]).double(), torch.tensor([0.35, 9.0]).double()
    of = marginals(*shapes)
    slope = log_slope(of, mean, sd)
    whole = 0.0
    for k in range(2):

        def weighted(u: float, k: int = k) -> float:
            return float(marginals(shapes[k]).log_slope(mean[k : k + 1] + sd[k] * u)) * float(stats.norm.pdf(u))

        whole += integrate.quad(weighted, -12, 12, epsabs=1e-11, limit=200)[0]
    assert float(slope.height) == pytest.approx(whole, abs=1e-8)
    for k in range(2):
        step = 1e-4 * sd[k] * torch.eye(2).double()[k]
        up, down = (log_slope(of, mean + s * step, sd) for s in (1, -1))
        assert float(slope.gradient[k]) == pytest.approx(float((up.height - down.height) / step.sum() / 2), rel=1e-5)
        assert float(slope.curvature[k]) == pytest.approx(
            float((up.gradient - down.gradient)[k] / step.sum() / 2), rel=1e-5
        )  # fmt: skip
    for k in range(4):
        moved = 1e-5 * torch.eye(4).double()[k].view(2, 2)
        up, down = (
            log_slope(of.shaped(of.skew + s * moved[0], of.tail + s * moved[1]), mean, sd).height for s in (1, -1)
        )
        assert float(slope.shape[k]) == pytest.approx(float(up - down) / 2e-5, rel=1e-5)


def log_density(z: Tensor, parameters: Tensor, of: Marginals) -> Tensor:
    """log q(z) of one number: parameters are mean, log sd, skew and tail."""
    shaped = of.shaped(parameters[2:3], parameters[3:])
    x = shaped.inverse(z)
    u = (x - parameters[0]) * (-parameters[1]).exp()
    return (-0.5 * u.square() - parameters[1] - shaped.log_slope(x)).squeeze(-1)


def test_the_metric_is_fishers_information_of_what_the_normal_does_not_do() -> None:
    """By scores of the density at evenly spread draws: the Schur complement of mean and log sd."""
    of, parameters = marginals(SHAPES[1]), torch.tensor([2.1, np.log(0.35), -0.7, 0.2]).double()
    u = torch.special.ndtri((torch.arange(4000).double() + 0.5) / 4000)[:, None]
    moved = 0.35 * u
    z = of(parameters[0] + moved)
    scores = torch.autograd.functional.jacobian(lambda at: log_density(z, at, of), parameters)
    whole = scores.T @ scores / len(z)
    schur = whole[2:, 2:] - whole[2:, :2] @ torch.linalg.solve(whole[:2, :2], whole[:2, 2:])
    information = metric(of, moved, parameters[:1], torch.tensor([[0.35**-2]]).double())
    torch.testing.assert_close(information.matrix, schur, rtol=0.03, atol=1e-3)


def test_a_metric_of_dependent_numbers_is_fishers_information() -> None:
    """At the identity, where mean and standard deviations are left alone: scores w P (x - m) - w', by draws."""
    correlation = torch.tensor([[1.0, 0.8], [0.8, 1.0]]).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 2, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(correlation).T
    of, precision = marginals(SHAPES[0], SHAPES[0]), torch.linalg.inv(correlation)
    information = metric(of, x, torch.zeros(2).double(), precision)

    def velocity(at: Tensor) -> Tensor:  # derivatives of sinh(asinh(u) + e) and sinh(exp(t) asinh(u))
        skew, tail = (1 + at.square()).sqrt(), at.asinh() * (1 + at.square()).sqrt()
        w = torch.stack([skew, tail])
        fixed = w.detach()
        offset, stretch = fixed.mean(1, keepdim=True), (fixed * x).mean(1, keepdim=True) / x.square().mean(0)
        return w - offset - stretch * at

    at = x.clone().requires_grad_()
    w = velocity(at)
    slopes = torch.stack([torch.autograd.grad(w[a].sum(), at, retain_graph=True)[0] for a in range(2)])
    scores = (w * (x @ precision) - slopes).detach().movedim(1, 0).flatten(1)
    torch.testing.assert_close(information.matrix, scores.T @ scores / len(x), rtol=0.05, atol=0.02)


def test_sums_of_clients_are_derivatives_of_their_heights() -> None:
    """Beside differences of the same draws' mean heights."""
    of = marginals(*SHAPES[1:3])
    x = torch.randn(50, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = of.centre + of.scale * x

    def height(z: Tensor) -> Tensor:
        return (z[..., 0].sin() + (z[..., 1] / 20).cos() * z[..., 0]) * torch.tensor([1.0, 2.0, -3.0]).double()

    sums = by_shape(height, of, x)
    for k in range(4):
        moved = 1e-6 * torch.eye(4).double()[k].view(2, 2)
        up, down = (height(of.shaped(of.skew + s * moved[0], of.tail + s * moved[1])(x)).mean(0) for s in (1, -1))
        torch.testing.assert_close(sums[:, k], (up - down) / 2e-6, rtol=1e-5, atol=1e-7)
    assert not by_shape(lambda z: torch.zeros(50, 3).double(), of, x).any()


def test_what_no_fit_broadcasts_is_said() -> None:
    of = marginals(SHAPES[1]).packed
    assert shape_error(of) == ""
    for row, value, words in ((1, 0.0, "scales"), (2, 1.01 * MOST_SKEW, "skews"), (3, -1.01 * MOST_TAIL, "tails")):
        wrong = of.clone()
        wrong[row] = value
        assert words in shape_error(wrong)
