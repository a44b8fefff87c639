"""The shape of weights' tails."""

from __future__ import annotations

import math

import pytest
import torch

from hierfl.pareto import k_hat


def test_the_shape_is_arviz_own_for_many_rows_at_once() -> None:
    az = pytest.importorskip("arviz")
    noise = torch.randn(3, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.tensor([[0.3], [1.0], [3.0]]) * noise
    found = k_hat(rows)
    assert found.tolist() == pytest.approx([float(az.psislw(row.numpy().copy())[1]) for row in rows], abs=1e-6)
    assert found[0] < 0.3
    assert found[2] > 0.7


def test_weights_without_a_tail() -> None:
    assert k_hat(torch.zeros(100)) == 0
    assert k_hat(torch.full((100,), -math.inf)) == math.inf
    assert k_hat(torch.tensor([0.0] + 99 * [-math.inf])) == math.inf
    assert k_hat(torch.arange(10.0)) == math.inf
