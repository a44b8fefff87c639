"""The shape of weights' tails."""

from __future__ import annotations

import math

import pytest
import torch

from hierfl.elpd import smoothed
from hierfl.pareto import k_hat


def test_the_shape_is_arviz_own_for_many_rows_at_once() -> None:
    """ArviZ 0.23 rounds 3 sqrt(S) up and 1.x down: of 400 weights it is 60 for both."""
    noise = torch.randn(3, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.tensor([[0.3], [1.0], [3.0]]) * noise
    shapes = k_hat(rows)
    assert shapes.tolist() == pytest.approx(smoothed(rows.numpy())[1].tolist(), abs=1e-6)
    assert shapes[0] < 0.3
    assert shapes[2] > 0.7


def test_weights_without_a_tail() -> None:
    assert k_hat(torch.zeros(100)) == 0
    assert k_hat(torch.full((100,), -math.inf)) == math.inf
    assert k_hat(torch.tensor([0.0] + 99 * [-math.inf])) == math.inf
    assert k_hat(torch.arange(10.0)) == math.inf
