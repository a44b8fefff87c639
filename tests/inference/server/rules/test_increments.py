"""Increments of Gaussians, and totals that are estimated."""

from __future__ import annotations

import pytest
import torch

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.increments import GaussianIncrements
from hierfl.inference.server.rules.running import EstimatedTotal


def context(reported: float) -> AggregationContext:
    """Of a round with so many reports of ten."""
    return AggregationContext(10, torch.tensor(reported, dtype=torch.float64), 1, dict)


def test_they_are_sums_of_natural_parameters() -> None:
    rule = GaussianIncrements("mu", "lam", "delta", 0.5, lambda chunk: (torch.zeros(1), torch.zeros(1)))
    rng = torch.Generator().manual_seed(0)
    mu, lam, h, change = (torch.rand(4, generator=rng, dtype=torch.float64) for _ in range(4))
    old = {"mu": mu, "lam": lam, "delta": torch.ones((), dtype=torch.float64)}
    new = rule.update(old, {"mu": h - change * mu, "lam": change}, context(4.0))
    torch.testing.assert_close(new["lam"], lam + change)
    torch.testing.assert_close(new["mu"] * new["lam"], lam * mu + h)
    assert float(new["delta"]) == 0.125
    assert float(rule.update(old, {"mu": h, "lam": change}, context(0.25))["delta"]) == 1
    assert rule.moving == ("mu",)


@pytest.mark.parametrize("change", [-2.0, -2.5])
def test_a_precision_that_would_not_be_above_zero_stays_with_its_mean(change: float) -> None:
    rule = GaussianIncrements("mu", "lam", "delta", 0.5, lambda chunk: (torch.zeros(1), torch.zeros(1)))
    old = {"mu": torch.ones(3), "lam": torch.full((3,), 2.0), "delta": torch.ones(())}
    new = rule.update(old, {"mu": torch.full((3,), 3.0), "lam": torch.tensor([change, 1.0, 0.0])}, context(5.0))
    assert new["lam"].tolist() == [2, 3, 2]
    assert new["mu"].tolist() == [1, 2, 2.5]


def test_before_anybody_has_said_anything_nothing_is_divided_by_nothing() -> None:
    rule = GaussianIncrements("mu", "lam", "delta", 0.5, lambda chunk: (torch.zeros(1), torch.zeros(1)))
    old = {"mu": torch.ones(2), "lam": torch.zeros(2), "delta": torch.ones(())}
    new = rule.update(old, {"mu": torch.tensor([0.0, 3.0]), "lam": torch.tensor([0.0, 2.0])}, context(1.0))
    assert new["mu"].tolist() == [1, 2.5]
    assert new["lam"].tolist() == [0, 2]


def test_a_total_is_scaled_to_all_clients() -> None:
    new = EstimatedTotal(lambda chunk: chunk.n).update({"n": torch.zeros(())}, {"n": torch.tensor(30.0)}, context(4.0))
    assert float(new["n"]) == 75
