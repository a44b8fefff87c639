"""Convex combinations of least squared error: optimality conditions, limits, and numbers of any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hierfl.inference.server.rules import simplex
from hierfl.inference.server.rules.simplex import combinations, least_on_simplex


def problem(clients: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """V, and H of ten classes of which each client has some, around a common one."""
    rng = torch.Generator().manual_seed(seed)
    has = torch.rand(clients, 10, 1, generator=rng, dtype=torch.float64) < 0.6
    common = torch.randn(10, 7, generator=rng, dtype=torch.float64)
    own = common + spread * has * torch.randn(clients, 10, 7, generator=rng, dtype=torch.float64)
    return 0.01 + torch.rand(clients, generator=rng, dtype=torch.float64), own


def program(variance: Tensor, mean: Tensor, j: int) -> Tensor:
    """diag V + D_j, entry by entry as the paper has it."""
    clients = len(variance)
    matrix = torch.diag(variance)
    for a in range(clients):
        for b in range(clients):
            matrix[a, b] += ((mean[j] - mean[a]) * (mean[j] - mean[b])).sum()
    return matrix


@pytest.mark.parametrize("spread", [0.0, 0.02, 0.1, 1.0])
def test_weights_meet_the_optimality_conditions(spread: float) -> None:
    """P alpha is the same number where alpha is above zero, and no less elsewhere; of a convex program that is all."""
    variance, mean = problem(12, spread)
    weights, zeros = combinations(variance, mean), 0
    for j, alpha in enumerate(weights):
        slope = program(variance, mean, j) @ alpha
        level = alpha @ slope
        assert (alpha >= 0).all()
        assert float(alpha.sum()) == pytest.approx(1, abs=1e-14)
        assert (slope[alpha > 0] - level).abs().max() < 1e-12 * level
        assert (slope[alpha == 0] - level > -1e-12 * level).all()
        zeros += int((alpha == 0).sum())
    assert (zeros > 0) == (spread >= 0.1)  # both kinds of condition are looked at


def test_equal_statistics_give_the_plain_mean() -> None:
    mean = problem(1, 1.0)[1].expand(9, 10, 7)
    weights = combinations(torch.full((9,), 0.3, dtype=torch.float64), mean)
    torch.testing.assert_close(weights, torch.full((9, 9), 1 / 9, dtype=torch.float64), rtol=0, atol=1e-15)


def test_equal_means_are_weighed_by_precision() -> None:
    variance, mean = torch.tensor([0.1, 0.2, 0.4, 3.0]).double(), torch.ones(4, 2, 2).double()
    precision = 1 / variance
    expected = (precision / precision.sum()).expand(4, 4)
    torch.testing.assert_close(combinations(variance, mean), expected, rtol=1e-13, atol=0)


def test_far_clients_and_clients_without_variance_keep_their_own() -> None:
    variance, mean = problem(6, 1.0)
    far = combinations(variance, 1e8 * mean)
    torch.testing.assert_close(far, torch.eye(6).double(), rtol=0, atol=1e-9)
    assert torch.equal(combinations(torch.zeros(6).double(), 0 * mean), torch.eye(6).double())
    some = combinations(torch.tensor([0.0, *variance[1:]]).double(), mean)
    assert some[0].tolist() == [1, 0, 0, 0, 0, 0]
    assert combinations(variance[:1], mean[:1]).tolist() == [[1]]
    assert combinations(variance[:0], mean[:0]).shape == (0, 0)


def test_a_twin_without_variance_is_taken_whole() -> None:
    """The least is zero, and no division by it."""
    variance, mean = torch.tensor([0.5, 0.0, 0.5]).double(), torch.tensor([[1.0], [1.0], [4.0]]).double()
    assert combinations(variance, mean).tolist()[0] == [0, 1, 0]


@pytest.mark.parametrize("size", [1e-12, 1e15])
def test_the_scale_changes_nothing(size: float) -> None:
    variance, mean = problem(8, 0.2)
    expected = combinations(variance, mean)
    torch.testing.assert_close(combinations(size**2 * variance, size * mean), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("lie", [1e6, 1e15])
def test_one_wild_client_cannot_spoil_the_program(lie: float) -> None:
    """What it says is far from everybody: its weight is next to none, and the others' are still the least."""
    variance, mean = problem(8, 0.2)
    mean[3] = lie * torch.randn(10, 7, generator=torch.Generator().manual_seed(1)).double()
    weights = combinations(variance, mean)
    assert (weights[:, 3] * lie < 1)[[0, 1, 2, 4, 5, 6, 7]].all()
    for j in (0, 5):
        gaps = (mean[j] - mean).flatten(1)
        left = weights[j] @ gaps
        slope = variance * weights[j] + gaps @ left
        level = weights[j] @ slope
        length = (variance + gaps.square().sum(1)).sqrt() * level.sqrt()
        assert ((slope - level)[weights[j] > 0].abs() < 1e-12 * length[weights[j] > 0]).all()
        assert (slope - level > -1e-12 * length).all()


def test_what_cannot_be_solved_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a failure of numbers, for which a round is skipped."""

    def lost(*args: object) -> None:
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr(simplex, "nnls", lost)
    with pytest.raises(ArithmeticError, match="non-negative least squares: Maximum number"):
        least_on_simplex(np.eye(3))
