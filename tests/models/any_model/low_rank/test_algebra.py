"""Precisions of low rank beside dense ones, and what a sketch says of a curvature."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hierfl.models.any_model.low_rank.precision import LowRank
from hierfl.models.any_model.low_rank.sketch import Sketched, directions

P, R = 12, 4


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some(seed: int = 0) -> tuple[LowRank, Tensor]:
    """One of positive and negative directions, in units far apart, and the same dense."""
    diagonal = random(P, seed=seed).exp() * torch.logspace(-3, 3, P, dtype=torch.float64)
    factor = 0.2 * diagonal.sqrt()[:, None] * random(P, R, seed=seed + 1)
    signs = torch.tensor([1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    dense = diagonal.diag() + (factor * signs) @ factor.T
    assert torch.linalg.eigvalsh(dense).min() > 0
    return LowRank.from_factor(diagonal, factor, signs, R), dense


def test_all_algebra_is_that_of_the_dense_matrix() -> None:
    of, dense = some()
    other, of_other = some(5)
    g, these = random(3, P, seed=9), torch.arange(P) % 3 > 0
    covariance, root = torch.linalg.inv(dense), of.drawn(torch.eye(P, dtype=torch.float64)).T
    pairs = [
        (of.dense, dense), (of.times(g), g @ dense), (of.solve(g), g @ covariance),
        (of.variance, covariance.diagonal()), (of.log_det, torch.logdet(dense)), (root @ root.T, covariance),
        (of.at(these).dense, dense[these][:, these]), (of.diagonal_of_all, dense.diagonal()),
        (LowRank.unpacked(of.packed).dense, dense),
        (of.padded(7).towards(other.padded(7), 1.0).dense, of_other),
    ]  # fmt: skip
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    between = of.padded(2 * R).towards(other.padded(2 * R), 0.3).dense
    torch.testing.assert_close(between, 0.7 * dense + 0.3 * of_other, rtol=1e-9, atol=1e-9)
    cut = of.towards(other, 0.3)  # to rank R: the diagonal stays
    torch.testing.assert_close(cut.diagonal_of_all, (0.7 * dense + 0.3 * of_other).diagonal(), rtol=1e-9, atol=0)
    assert of.definite
    assert not LowRank.unpacked(-of.packed).definite


def sketched(curvature: Tensor, prior: Tensor, rank: int) -> Sketched:
    w, points = directions(len(prior), rank, 0), torch.zeros(len(prior), dtype=torch.bool)
    return Sketched(curvature.diagonal() + prior, curvature @ w + prior[:, None] * w, prior, w, points)


def test_a_curvature_of_low_rank_is_found_whole_and_of_another_its_diagonal() -> None:
    prior = torch.logspace(-2, 2, 40, dtype=torch.float64)
    rows, old = random(6, 40), LowRank(torch.ones(40).double(), torch.zeros(40, 8).double(), torch.zeros(8).double())
    curvature = rows.T @ rows
    whole = sketched(curvature, prior, 8).precision(old)
    torch.testing.assert_close(whole.dense, curvature + prior.diag(), rtol=1e-8, atol=1e-8)
    many = random(200, 40, seed=1)
    curvature = many.T @ many
    rough = sketched(curvature, prior, 8).precision(old)
    torch.testing.assert_close(rough.diagonal_of_all, curvature.diagonal() + prior, rtol=1e-8, atol=0)
    assert (rough.dense - curvature - prior.diag()).abs().max() > 1  # its other entries are not all known
    assert torch.linalg.eigvalsh(rough.dense).min() > 0


@pytest.mark.parametrize("rank", [3, 10])
def test_a_curvature_that_is_not_definite_is_kept_so(rank: int) -> None:
    """As where a network's weights have no prior."""
    half = random(10, 10)
    curvature, prior = half + half.T - 2 * torch.eye(10).double(), torch.zeros(10).double()
    assert torch.linalg.eigvalsh(curvature)[0] < 0 < torch.linalg.eigvalsh(curvature)[-1]
    none = torch.zeros(10, rank).double(), torch.zeros(rank).double()
    kept = sketched(curvature, prior, rank).precision(LowRank(torch.ones(10).double(), *none))
    assert torch.linalg.eigvalsh(kept.dense).min() > 0
    assert kept.definite
