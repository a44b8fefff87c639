"""Weighted draws of an adapter's posterior, by importance sampling from the prior on."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.baselines import rows_of
from support.federations import blobs
from torch import Tensor

from hierfl.models import PFedHB
from hierfl.models.pfedhb.adapter_draws import Posterior
from hierfl.models.pfedhb.adapter_modes import Mode
from hierfl.nn.networks.build import architecture

TAU = 1.5


def likelihood(log_p: Any, d: int = 1) -> Any:
    """Of B (..., S, d), by a formula for the log likelihood (..., S); derivatives of the sum of rows by autograd."""
    tau = torch.full((d,), TAU, dtype=torch.float64)

    def heights(b: Tensor) -> Tensor:
        return log_p(b) - 0.5 * (b / tau).square().sum(-1)

    def expanded(b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        point = b.clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(log_p(point).sum(), point, create_graph=True)
            (second,) = torch.autograd.grad(slope.sum(), point)
        return heights(b), slope.detach() - b / tau.square(), -second.clamp_max(-0.01)[..., None]

    return SimpleNamespace(tau=tau, heights=heights, height=heights, expanded=expanded)


def posterior(of: Any, rows: int = 1, many: int = 2048, last: int = 8192) -> Posterior:
    d = len(of.tau)

    def noise(name: str, number: int) -> Tensor:
        # Each row has numbers of its own, as clients have.
        parts = [torch.Generator().manual_seed(1000 * row + sum(name.encode()) + number) for row in range(rows)]
        e = torch.stack([torch.randn((number // 2, d), generator=rng, dtype=torch.float64) for rng in parts], 1)
        return torch.cat([e, -e])

    return Posterior.temper(of, noise, many, last, None)


def two_modes(b: Tensor) -> Tensor:
    """A third of the likelihood around -2, two thirds around 1.5, nothing between them."""
    b = b[..., 0]
    parts = [-0.5 * ((b - 1.5) / 0.2).square() + 0.69, -0.5 * ((b + 2) / 0.25).square()]
    return torch.stack(parts).logsumexp(0)


def test_weights_know_both_modes() -> None:
    """Against a sum over a grid."""
    of = likelihood(two_modes)
    grid = torch.linspace(-6, 6, 20_001, dtype=torch.float64)[:, None, None]
    exact = of.heights(grid).softmax(0)
    drawn = posterior(of)
    assert float(drawn.weights.sum()) == pytest.approx(1)
    above = float((drawn.weights * (drawn.b[..., 0] > 0)).sum())
    assert above == pytest.approx(float((exact * (grid[..., 0] > 0)).sum()), abs=0.03)
    square = float((exact * (grid[..., 0] / TAU).square()).sum())
    # One such value in 0.03 is noise: some 1,700 draws are effective.
    assert float(drawn.squares) == pytest.approx(square, abs=0.09)
    # Newton's steps from the highest draw lead to the highest mode, those from another start do not.
    steps = [Mode.climb(of, b, 30, 1e-16, again=True) for b in (drawn.highest, torch.full((1, 1), -1.5).double())]
    assert float(steps[0].height) == pytest.approx(float(of.heights(grid).max()), abs=1e-5)
    assert float(steps[1].b) < -1
    for pair in (steps, steps[::-1]):
        assert float(Mode.higher(*pair).b) == float(steps[0].b)


def curved(b: Tensor) -> Tensor:
    """A ridge along a parabola: the second number is the square of the first, to a half."""
    return -0.5 * ((b[..., 1] - b[..., 0].square()) / 0.5).square() - 0.5 * (b[..., 0] - 0.5).square()


def test_a_curved_ridge() -> None:
    """Against a sum over a grid: no normal is near to this posterior."""
    of = likelihood(curved, 2)
    first, second = torch.meshgrid(*(torch.linspace(*ends, 401).double() for ends in ((-4, 4), (-4, 9))), indexing="ij")
    grid = torch.stack([first, second], -1).flatten(0, 1)[:, None]
    exact = of.heights(grid).softmax(0)
    drawn = posterior(of, last=65_536)
    torch.testing.assert_close(drawn.squares, (exact[..., None] * (grid / TAU).square()).sum(0), atol=0, rtol=0.08)
    mean = (drawn.weights[..., None] * drawn.b).sum(0)
    torch.testing.assert_close(mean, (exact[..., None] * grid).sum(0), atol=0.05, rtol=0)


def test_a_row_is_what_it_is_alone_however_sharp_the_others_are() -> None:
    """Of normal posteriors, which are known: one as wide as the prior, one of a thousandth of its width."""
    sds, means = torch.tensor([3.0, 0.3, 0.0015]).double(), torch.tensor([1.0, 2.0, -2.0]).double()
    of = likelihood(
        lambda b: (-0.5 * ((b - means[: b.shape[-2], None]) / sds[: b.shape[-2], None]).square()).sum(-1), 3
    )
    every, alone = posterior(of, 3), posterior(of, 1)
    for key in ("b", "weights"):
        torch.testing.assert_close(getattr(every, key)[:, :1], getattr(alone, key), atol=1e-12, rtol=1e-9)
    variance = 1 / (sds.pow(-2) + TAU**-2)
    mean = variance * means / sds.square()
    expected = ((mean.square() + variance) / TAU**2)[:, None].expand(3, 3)
    torch.testing.assert_close(every.squares, expected, atol=0, rtol=0.08)
    drawn = (every.weights[..., None] * every.b).sum(0)
    torch.testing.assert_close(drawn, mean[:, None].expand(3, 3), atol=0.03, rtol=0)
    spread = (every.weights[..., None] * (every.b - drawn).square()).sum(0).sqrt()
    torch.testing.assert_close(spread, variance.sqrt()[:, None].expand(3, 3), atol=0, rtol=0.05)


def test_where_draws_are_worth_too_little_laplaces_approximation_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = blobs([30, 12, 5])
    net = architecture("mlp:5", fed)
    method = PFedHB(net, adapters="on", heads="off", shares="off", draws=50)
    w = torch.randn(net.head.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    spread = {"adapters.log_rho": torch.zeros(1).double(), "adapters.seed": torch.tensor([7.0]).double()}
    rows = dataclasses.replace(rows_of(method, fed, w=w, **spread), method=method.plain)
    weighed = method.adapters.step(True).run(rows, 0)
    monkeypatch.setattr("hierfl.models.pfedhb.adapters.FEWEST", 1e9)
    too_few = method.adapters.step(True).run(weighed, 0)
    monkeypatch.setattr("hierfl.models.pfedhb.adapters.DRAWN_AT_MOST", 0)
    laplace = method.adapters.step(True).run(weighed, 0)
    for key in ("a_j/score", "a_j_draws"):
        torch.testing.assert_close(too_few.values[key], laplace.values[key], atol=1e-6, rtol=1e-6)
        assert not torch.allclose(weighed.values[key], laplace.values[key], atol=1e-2)


def test_nothing_is_known_of_a_client_without_data() -> None:
    of = likelihood(lambda b: 0 * b.sum(-1), 4)
    drawn = posterior(of)
    torch.testing.assert_close(drawn.squares, torch.ones((1, 4)).double(), atol=0.05, rtol=0)
