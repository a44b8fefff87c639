"""Decompositions of what clients send report failure row by row."""

from __future__ import annotations

import pytest
import torch

from hierfl.ppl.gaussian_factors import Gaussian


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_decompositions_report_failure(poison: float) -> None:
    bad = torch.eye(3, dtype=torch.float64)
    bad[0, 0] = poison
    ones, eye = torch.ones(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    both = Gaussian(torch.stack([ones, ones]), torch.stack([bad, eye]), "full")
    mean = both.mean(torch.zeros(2, 3, dtype=torch.float64))
    assert not mean[0].isfinite().all()
    assert torch.equal(mean[1], ones)


def test_a_client_without_a_class_says_nothing_of_it() -> None:
    """Zero precision and zero h are a message, too; and singular ones are, where h = Lambda mu."""
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(6, 3, generator=rng, dtype=torch.float64)
    precision, mu = 1e8 * root @ root.T, torch.randn(6, generator=rng, dtype=torch.float64)
    both = Gaussian(
        torch.stack([precision @ mu, torch.zeros(6).double()]), torch.stack([precision, 0 * precision]), "full"
    )
    mean = both.regularised_mean()
    assert mean[1].tolist() == [0.0] * 6
    assert torch.allclose(precision @ mean[0], precision @ mu, rtol=1e-6)
    assert mean[0].norm() < 3 * mu.norm()
