"""Shrunk covariances against their definition."""

from __future__ import annotations

import pytest
import torch

from hierfl.ppl.shrunk_covariance import solved


@pytest.mark.parametrize("rho", [0.0, 0.01, 3.0])
@pytest.mark.parametrize("number", [1, 2, 5, 12])
def test_it_is_the_definition(number: int, rho: float) -> None:
    """More samples than numbers, and fewer; rows side by side."""
    generator = torch.Generator().manual_seed(number)
    samples = 1 + torch.randn(3, number, 7, generator=generator, dtype=torch.float64)
    gap = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    solution = solved(samples, gap, rho)
    share = 1 / (1 + (number - 1) * rho)
    for row in range(3):
        spread = torch.cov(samples[row].T) if number > 1 else torch.zeros(7, 7, dtype=torch.float64)
        sigma = share * torch.eye(7, dtype=torch.float64) + (1 - share) * spread
        torch.testing.assert_close(solution[row], torch.linalg.solve(sigma, gap[row]), rtol=1e-10, atol=1e-12)


def test_without_a_spread_it_is_the_gap() -> None:
    gap = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(solved(torch.ones(2, 1, 4), gap, 0.5), gap)


def test_what_is_not_finite_stays_so() -> None:
    """In its own row alone."""
    samples = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    samples[0, 1, 2] = torch.inf
    solution = solved(samples, samples[:, 0], 0.5)
    assert not solution[0].isfinite().any()
    assert solution[1].isfinite().all()


def test_no_matrix_of_all_numbers_is_made() -> None:
    """Forty thousand numbers: a covariance would be six gigabytes."""
    samples = torch.randn(2, 4, 40_000, generator=torch.Generator().manual_seed(0))
    assert solved(samples, samples[:, 0], 0.01).isfinite().all()
