"""Trees of classes are trees, and split where 2-means does."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from hierfl.ppl.class_tree import any_tree, class_tree


def assert_tree(sides: Tensor, classes: list[int]) -> None:
    """Each class has a way of its own, each node two sides, and probabilities of the leaves sum to one."""
    absent = [k for k in range(len(sides)) if k not in classes]
    assert (sides[absent] == 0).all()
    assert (sides != 0).any(0).sum() == max(0, len(classes) - 1)
    for a, b in itertools.combinations(classes, 2):
        assert ((sides[a] * sides[b]) == -1).sum() == 1  # they part exactly once
    up = torch.rand(sides.shape[1], generator=torch.Generator().manual_seed(0))
    ways = torch.where(sides > 0, up, torch.where(sides < 0, 1 - up, torch.ones(()))).prod(1)
    assert float(ways[classes].sum()) == pytest.approx(1.0, abs=1e-6)


def test_rows_have_trees_of_their_own_classes() -> None:
    means = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    present = torch.tensor([[1] * 7, [0, 1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1, 0]]).bool()
    sides = class_tree(means, present)
    for j in range(3):
        assert_tree(sides[j], present[j].nonzero().flatten().tolist())
        assert torch.equal(class_tree(means[j : j + 1], present[j : j + 1])[0], sides[j])


def test_classes_that_look_alike_are_still_told_apart() -> None:
    assert_tree(class_tree(torch.zeros(1, 5, 2), torch.ones(1, 5).bool())[0], list(range(5)))
    assert_tree(any_tree(6), list(range(6)))
    assert_tree(any_tree(2), [0, 1])


def test_the_root_is_the_best_split_in_two() -> None:
    """Of all of them, by the sum of squared distances to the sides' means."""
    rng = torch.Generator().manual_seed(3)
    means = torch.randn(6, 3, generator=rng, dtype=torch.float64) + 4 * torch.tensor([0, 1, 0, 1, 1, 1.0])[:, None]
    root = class_tree(means[None], torch.ones(1, 6).bool())[0, :, 0]

    def cost(side: Tensor) -> float:
        return float(sum((means[s] - means[s].mean(0)).square().sum() for s in (side, ~side)))

    every = [torch.tensor(bits) for bits in itertools.product([False, True], repeat=6) if 0 < sum(bits) < 6]
    assert cost(root > 0) == pytest.approx(min(cost(side) for side in every))
