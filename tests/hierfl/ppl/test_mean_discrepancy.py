"""How far two samples are from one distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hierfl.ppl.mean_discrepancy import SameDistribution, squared_mmd


def by_hand(x: Tensor, y: Tensor) -> float:
    """Pair by pair."""

    def k(a: Tensor, b: Tensor) -> float:
        return sum(math.exp(-float(((a - b) ** 2).sum()) / 2 / s) for s in (10, 15, 20, 50))

    def mean(first: Tensor, second: Tensor) -> float:
        return sum(k(a, b) for a in first for b in second) / len(first) / len(second)

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


@pytest.fixture
def samples() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 5, 4, generator=rng, dtype=torch.float64) for _ in range(2))
    return x, 2 * y + 1


def test_each_row_is_its_own_sum_over_pairs(samples: tuple[Tensor, Tensor]) -> None:
    x, y = samples
    discrepancy = squared_mmd(x, y)
    assert discrepancy.tolist() == pytest.approx([by_hand(a, b) for a, b in zip(x, y, strict=True)], rel=1e-12)
    assert (discrepancy > 0).all()


def test_padding_plays_no_part(samples: tuple[Tensor, Tensor]) -> None:
    x, y = samples
    counts = [5, 2, 1]
    mask = torch.arange(5) < torch.tensor(counts)[:, None]
    x, y = (torch.where(mask[..., None], part, 1e3) for part in (x, y))
    leaf = x.clone().requires_grad_()
    discrepancy = squared_mmd(leaf, y, mask)
    expected = [by_hand(a[:n], b[:n]) for a, b, n in zip(x, y, counts, strict=True)]
    assert discrepancy.tolist() == pytest.approx(expected, rel=1e-12)
    (slope,) = torch.autograd.grad(discrepancy.sum(), leaf)
    assert (slope[~mask] == 0).all()
    assert (slope[mask] != 0).any()


def test_a_sample_is_like_itself_and_stays_there(samples: tuple[Tensor, Tensor]) -> None:
    """In single precision, too: from inner products the distances of far points would be noise, and below zero."""
    x = (samples[0] + 1000).float()
    leaf = x.clone().requires_grad_()
    discrepancy = squared_mmd(leaf, x)
    (slope,) = torch.autograd.grad(discrepancy.sum(), leaf)
    assert discrepancy.abs().max() < 1e-6
    assert slope.abs().max() < 1e-6
    near = squared_mmd(x, x + 1e-2)
    torch.testing.assert_close(near.double(), squared_mmd(x.double(), (x + 1e-2).double()), rtol=0, atol=2e-6)


def test_the_factor_is_its_exponential(samples: tuple[Tensor, Tensor]) -> None:
    x, y = samples
    mask = torch.arange(5) < torch.tensor([5, 2, 4])[:, None]
    strength = torch.tensor([2.0, 30.0, 0.5], dtype=torch.float64)
    factor = SameDistribution(y, strength, mask)
    assert (factor.batch_shape, factor.event_shape) == ((3,), (5, 4))
    torch.testing.assert_close(factor.log_prob(x), -strength * squared_mmd(x, y, mask))
    wider = factor.expand(torch.Size([2, 3]))
    assert torch.equal(wider.log_prob(x), factor.log_prob(x).expand(2, 3))
