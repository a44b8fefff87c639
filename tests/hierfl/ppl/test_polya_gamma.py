"""Draws of Polya-Gamma variables have the moments and the Laplace transform of the law."""

from __future__ import annotations

import math

import pytest
import torch

from hierfl.ppl.polya_gamma import NORMALS, polya_gamma, polya_gamma_mean

DRAWS = 400_000


def variance(c: float) -> float:
    """(sinh c - c) / (4 c^3 cosh(c / 2)^2)."""
    return 1 / 24 if c == 0 else (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2)


@pytest.mark.parametrize("c", [0.0, 0.7, -3.0, 9.0, 20.0])
def test_mean_variance_and_laplace_transform(c: float) -> None:
    normals = torch.randn(DRAWS, NORMALS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = polya_gamma(torch.full((DRAWS,), c, dtype=torch.float64), normals)
    mean = 0.25 if c == 0 else math.tanh(c / 2) / (2 * c)
    assert float(polya_gamma_mean(torch.tensor(c, dtype=torch.float64))) == pytest.approx(mean, rel=1e-12)
    assert (drawn > 0).all()
    assert float(drawn.mean()) == pytest.approx(mean, abs=4 * math.sqrt(variance(c) / DRAWS))
    assert float(drawn.var()) == pytest.approx(variance(c), rel=0.015)
    for t in (0.5, 5.0, 40.0):  # E exp(-t omega) = cosh(c / 2) / cosh(sqrt((c^2 / 2 + t) / 2))
        expected = math.cosh(c / 2) / math.cosh(math.sqrt((c**2 / 2 + t) / 2))
        transform = (-t * drawn).exp()
        assert float(transform.mean()) == pytest.approx(expected, abs=4 * float(transform.std()) / math.sqrt(DRAWS))


def test_the_mean_is_smooth_at_zero() -> None:
    c = torch.linspace(0.0099, 0.0101, 21, dtype=torch.float64)
    torch.testing.assert_close(polya_gamma_mean(c), 0.25 - c**2 / 48 + c**4 / 480, rtol=1e-10, atol=0)


@pytest.mark.parametrize("f", [0.0, 1.3, -4.0])
def test_logistic_likelihoods_are_gaussian_given_them(f: float) -> None:
    """sigma(y f) = E exp(y f / 2 - omega f^2 / 2) / 2 of omega ~ PG(1, 0)."""
    normals = torch.randn(DRAWS, NORMALS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    omega = polya_gamma(torch.zeros(DRAWS, dtype=torch.float64), normals)
    likelihood = (f / 2 - omega * f**2 / 2).exp() / 2
    assert float(likelihood.mean()) == pytest.approx(
        1 / (1 + math.exp(-f)), abs=4 * float(likelihood.std()) / DRAWS**0.5 + 1e-12
    )
