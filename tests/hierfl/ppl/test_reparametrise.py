"""Guides' distributions, drawn from given noise."""

from __future__ import annotations

import pytest
import torch
from pyro.distributions import Delta, Gamma, Laplace, LogNormal, MultivariateNormal, Normal

from hierfl import UserError
from hierfl.ppl.reparametrise import reparametrise
from hierfl.rng import generator


@pytest.mark.parametrize(
    ("fn", "mean", "std"),
    [
        (Normal(2.0, 3.0), 2.0, 3.0),
        (LogNormal(0.0, 0.5), 1.1331, 0.6039),
        (Laplace(1.0, 2.0), 1.0, 2.8284),
        (Delta(torch.tensor(4.0)), 4.0, 0.0),
    ],
)
def test_guide_distributions_are_drawn_as_they_are(fn: object, mean: float, std: float) -> None:
    noise = torch.randn(400_000, generator=generator("many"), dtype=torch.float64)
    drawn = torch.as_tensor(reparametrise(fn, lambda: noise, "z"), dtype=torch.float64).expand(400_000)
    assert abs(drawn.mean() - mean) < 6 * max(std, 1e-6) / 400_000**0.5
    assert abs(drawn.std() - std) < 0.02 * std + 1e-9


def test_a_correlated_guide_has_its_covariance() -> None:
    cov = torch.tensor([[2.0, 0.6], [0.6, 1.0]], dtype=torch.float64)
    fn = MultivariateNormal(torch.zeros(2, dtype=torch.float64), cov)
    noise = torch.randn((200_000, 2), generator=generator("cov"), dtype=torch.float64)
    assert torch.allclose(torch.cov(reparametrise(fn, lambda: noise, "z").T), cov, atol=0.02)


def test_a_guide_that_cannot_be_keyed_is_refused() -> None:
    with pytest.raises(UserError, match="Gamma cannot be drawn with client-keyed noise"):
        reparametrise(Gamma(1.0, 1.0), lambda: torch.zeros(()), "z")
