"""A population of label shares: closed forms beside sums over all sets of classes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from hierfl.ppl.label_shares import LabelShares, SharesGiven

KAPPA = torch.tensor([0.1, 0.3, 0.2, 0.1, 0.3], dtype=torch.float64)
EQUAL = torch.full((5,), 0.2, dtype=torch.float64)
UNEQUAL = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)
LOG_BETA = torch.tensor([0.7], dtype=torch.float64).log()


def by_sets(counts: Tensor, pooled: Tensor) -> tuple[float, Tensor, Tensor]:
    """log p(n), p(|A| = a | n) and E[pi | n] from every set of classes."""
    alpha, classes = LOG_BETA.exp() * len(pooled) * pooled, range(len(pooled))
    sizes, mean = torch.zeros_like(pooled), torch.zeros_like(pooled)
    for a in range(1, len(pooled) + 1):
        for members in map(list, itertools.combinations(classes, a)):
            if any(counts[c] > 0 for c in classes if c not in members):
                continue
            n, own = counts[members], alpha[members]
            weight = KAPPA[a - 1] * pooled[members].sum() / math.comb(len(pooled) - 1, a - 1)
            log_ratio = torch.lgamma(own.sum()) - torch.lgamma(n.sum() + own.sum())
            weight = weight * (log_ratio + (torch.lgamma(n + own) - torch.lgamma(own)).sum()).exp()
            sizes[a - 1] += weight
            mean[members] += weight * (n + own) / (n.sum() + own.sum())
    total = sizes.sum()
    return float(total.log()), sizes / total, mean / total


@pytest.mark.parametrize("counts", [[3, 2, 0, 0, 0], [0, 0, 1, 0, 0], [10, 0, 4, 1, 0], [1, 1, 1, 1, 1], [0] * 5])
@pytest.mark.parametrize("pooled", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_the_posterior_is_the_sum_over_all_sets(counts: list[int], pooled: Tensor) -> None:
    n = torch.tensor(counts, dtype=torch.float64)
    log_evidence, sizes, mean = by_sets(n, pooled)
    given = LabelShares(KAPPA.log(), LOG_BETA, pooled.log(), n)
    # exact where classes are equally frequent; elsewhere a set's concentration is that of a mean set of its size
    exact = pooled is EQUAL or min(counts) == max(counts)
    torch.testing.assert_close(given.sizes_given, sizes, rtol=0, atol=1e-7 if exact else 0.07)
    torch.testing.assert_close(given.mean, mean, rtol=0, atol=1e-7 if exact else 0.05)
    assert float(given.log_evidence) == pytest.approx(log_evidence, abs=1e-6 if exact else 0.1)
    assert float(given.mean.sum()) == pytest.approx(1, abs=1e-9)


def test_without_counts_it_has_the_pooled_shares_and_draws_of_them() -> None:
    population = LabelShares(KAPPA.log(), LOG_BETA, UNEQUAL.log())
    torch.testing.assert_close(population.mean, UNEQUAL, rtol=1e-12, atol=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = population.sample(torch.Size([20000]))
    torch.testing.assert_close(drawn.mean(0), UNEQUAL, rtol=0, atol=0.012)  # four standard errors
    sizes = torch.bincount((drawn > 0).sum(-1), minlength=6)[1:] / len(drawn)
    torch.testing.assert_close(sizes, KAPPA.to(sizes), rtol=0, atol=0.015)


def test_draws_given_counts_have_their_mean_and_their_classes() -> None:
    n = torch.tensor([[3.0, 2, 0, 0, 0], [0, 0, 0, 0, 40]], dtype=torch.float64)
    given = LabelShares(KAPPA.log(), LOG_BETA, EQUAL.log(), n)
    u = torch.rand(20000, 2, 17, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = given.draws(u)
    torch.testing.assert_close(drawn.mean(0), given.mean, rtol=0, atol=0.006)
    assert bool((drawn[:, n > 0] > 0).all())
    sizes = torch.stack([torch.bincount((drawn[:, j] > 0).sum(-1), minlength=6)[1:] for j in range(2)]) / len(drawn)
    torch.testing.assert_close(sizes, given.sizes_given.to(sizes), rtol=0, atol=0.015)


def test_the_density_is_that_of_a_face_times_its_probability() -> None:
    population = LabelShares(KAPPA.log(), LOG_BETA, UNEQUAL.log())
    value = torch.tensor([0.25, 0.0, 0.75, 0.0, 0.0], dtype=torch.float64)
    alpha = LOG_BETA.exp() * 5 * UNEQUAL
    face = torch.distributions.Dirichlet(alpha[[0, 2]]).log_prob(value[[0, 2]])
    expected = face + (KAPPA[1] * 0.55 / math.comb(4, 1)).log()
    assert float(population.log_prob(value)) == pytest.approx(float(expected), rel=1e-12)


def test_a_posterior_of_draws_keeps_its_mean_in_closed_form() -> None:
    draws, mean = torch.arange(42.0).reshape(2, 1, 1, 7, 3), torch.arange(6.0).reshape(2, 1, 3)
    given = SharesGiven(draws, mean)
    assert torch.equal(given.expand(torch.Size([2, 4])).mean, mean.expand(2, 4, 3))
    assert given.sample(torch.Size([7])).shape == (7, 2, 1, 3)
