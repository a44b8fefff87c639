"""A density that falls with the distance from its centre."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Laplace

from hierfl.ppl.radial_laplace import RadialLaplace


def test_of_one_number_it_is_laplaces() -> None:
    x = torch.linspace(-3, 3, 25, dtype=torch.float64)
    centre = x.new_full((25, 1), 0.4)
    log_density = RadialLaplace(centre, 1.7).log_prob(x[:, None])
    torch.testing.assert_close(
        log_density, Laplace(centre[:, 0], 1 / x.new_tensor(1.7)).log_prob(x), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("d", [2, 3, 5])
def test_it_integrates_to_one(d: int) -> None:
    """Over spheres of radius r, of area 2 pi^(d/2) r^(d-1) / Gamma(d/2); by the trapezium rule in r."""
    r = torch.linspace(0, 60, 200_001, dtype=torch.float64)
    point = torch.zeros(len(r), d, dtype=torch.float64)
    point[:, 0] = r
    density = RadialLaplace(torch.zeros_like(point), 1.3).log_prob(point).exp()
    area = 2 * math.pi ** (d / 2) * r ** (d - 1) / math.gamma(d / 2)
    assert float(torch.trapezoid(density * area, r)) == pytest.approx(1, abs=1e-6)


def test_expanded_it_is_the_same_and_flat_at_its_centre() -> None:
    centre = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    single = RadialLaplace(centre, 0.2)
    many = single.expand(torch.Size([2, 3]))
    assert (many.batch_shape, many.event_shape) == ((2, 3), (4,))
    z = (centre + 1).requires_grad_()
    assert torch.equal(many.log_prob(z), single.log_prob(z).expand(2, 3))
    at = centre.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(single.log_prob(at).sum(), at)[0], torch.zeros_like(at))
