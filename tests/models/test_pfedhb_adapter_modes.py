"""The mixture of Laplace approximations around several modes of an adapter's posterior."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hierfl.models.pfedhb.adapter_mixture import Mixture, Mode, half_as_good

TAU = 1.5


def likelihood(log_p: Any) -> Any:
    """Of one row with one number B: heights by a formula for the log likelihood, derivatives by autograd."""
    tau = torch.tensor([TAU], dtype=torch.float64)

    def heights(b: Tensor) -> Tensor:
        return log_p(b.squeeze(-1)) - 0.5 * (b / tau).square().sum(-1)

    def expanded(b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        point = b.clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(log_p(point.squeeze(-1)).sum(), point, create_graph=True)
            (second,) = torch.autograd.grad(slope.sum(), point)
        return heights(b), slope.detach() - b / tau.square(), -second.clamp_max(-0.01)[..., None]

    return SimpleNamespace(tau=tau, heights=heights, height=heights, expanded=expanded)


def two_modes(b: Tensor) -> Tensor:
    """A third of the likelihood around -2, two thirds around 1.5, nothing between them."""
    parts = [-0.5 * ((b - 1.5) / 0.2).square() + 0.69, -0.5 * ((b + 2) / 0.25).square()]
    return torch.stack(parts).logsumexp(0)


def mixture(likelihood: Any, *starts: float, scale: float = 1.0) -> Mixture:
    at = [torch.full((1, 1), start, dtype=torch.float64) for start in starts]
    return Mixture(likelihood, [Mode.climb(likelihood, b, 30, 1e-16, again=True) for b in at], scale)


def moments(mixture: Mixture, many: int = 30_000) -> Tensor:
    """P(B > 0) and E B^2 by weighted draws."""
    rng = torch.Generator().manual_seed(0)
    normals = [torch.randn((many, 1, 1), generator=rng, dtype=torch.float64) for _ in mixture.modes]
    drawn = mixture.drawn(normals)
    weights = mixture.weights(drawn)
    assert float(weights.sum()) == pytest.approx(1)
    return torch.stack([(weights * value).sum() for value in ((drawn > 0).double()[..., 0], drawn.square()[..., 0])])


def test_weights_know_both_modes() -> None:
    """Against a sum over a grid; draws around one mode know nothing of the other."""
    of = likelihood(two_modes)
    grid = torch.linspace(-6, 6, 20_001, dtype=torch.float64)[:, None, None]
    weights = of.heights(grid).softmax(0)
    exact = torch.stack([(weights * value).sum() for value in ((grid > 0).double()[..., 0], grid.square()[..., 0])])
    for scale in (1.0, 1.6):
        both = mixture(of, 1.0, -1.5, 2.0, scale=scale)
        torch.testing.assert_close(moments(both), exact, atol=0.015, rtol=0)
    assert float(moments(mixture(of, -1.5))[0]) < 0.01 < 0.5 < float(exact[0]) < 0.95
    # a row keeps the highest
    assert float(both.highest().b) == pytest.approx(float(mixture(of, 1.0).modes[0].b), abs=1e-6)
    assert float(both.highest().height) == pytest.approx(float(of.heights(grid).max()), abs=1e-6)


def test_a_normal_posterior_is_exact_from_any_start() -> None:
    """Weights are equal, and the mixture's own squares are the posterior's."""
    of = likelihood(lambda b: -0.5 * ((b - 1) / 0.5).square())
    some = mixture(of, 0.0, 3.0, -2.0)
    variance = 1 / (1 / 0.25 + 1 / TAU**2)
    mean = variance / 0.25
    expected = (mean**2 + variance) / TAU**2 - 1
    torch.testing.assert_close(some.squares(), torch.full((1, 1), expected, dtype=torch.float64))
    rng = torch.Generator().manual_seed(0)
    drawn = some.drawn([torch.randn((7, 1, 1), generator=rng, dtype=torch.float64) for _ in range(3)])
    torch.testing.assert_close(some.weights(drawn), torch.full((21, 1), 1 / 21, dtype=torch.float64))


def test_the_scale_costs_half_of_the_draws() -> None:
    """Of a normal posterior of 16 numbers; the mixture's own squares are those of a variance of s^2."""
    d, many = 16, 40_000
    tau = torch.ones(d, dtype=torch.float64)
    flat = SimpleNamespace(tau=tau, heights=lambda b: -0.5 * b.square().sum(-1))
    zero = torch.zeros((1, d), dtype=torch.float64)
    wide = Mixture(flat, [Mode(zero, zero[:, 0], torch.zeros((1, d, d), dtype=torch.float64))], half_as_good(d))
    rng = torch.Generator().manual_seed(0)
    drawn = wide.drawn([torch.randn((many, 1, d), generator=rng, dtype=torch.float64)])
    effective = float(1 / wide.weights(drawn).square().sum())
    assert effective == pytest.approx(many / 2, rel=0.05)
    torch.testing.assert_close(wide.squares()[0], drawn.square().mean((0, 1)) - 1, atol=0.05, rtol=0)
