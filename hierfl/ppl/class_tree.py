"""Classes as leaves of a binary tree: C - 1 decisions between two sides instead of one between C."""

from __future__ import annotations

import torch
from torch import Tensor

#: passes of 2-means at each node
PASSES = 20


def class_tree(means: Tensor, present: Tensor) -> Tensor:
    """Trees from class means, top down: at every node 2-means of the classes below it, (S, C, C - 1).

    Entry (k, t) is 1 or -1, the side of node t on which class k is, or 0 where it is not below t. The node that is
    split next is the one with most classes. 2-means begins at the two classes that are farthest apart, which stay on
    their sides, so that none is empty; nothing is random.

    Args:
        means: (S, C, D).
        present: which classes a row has, (S, C); the others are nowhere in its tree.
    """
    rows, classes, _ = means.shape
    square = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")  # (S, C, C)
    group = torch.where(present, 0, -1)  # the node or leaf in which a class is
    sides, row = means.new_zeros(rows, classes, classes - 1), torch.arange(rows, device=means.device)
    for node in range(classes - 1):
        counts = torch.stack([(group == g).sum(1) for g in range(node + 1)], 1)  # (S, node + 1)
        most, which = counts.max(1)
        inside = (group == which[:, None]) & (most > 1)[:, None]
        pair = torch.where(inside[:, :, None] & inside[:, None, :], square, -1.0).flatten(1).argmax(1)
        first, second = pair // classes, pair % classes
        # Where all means are alike the farthest pair is a class and itself.
        last = torch.where(inside, torch.arange(classes, device=means.device), -1).amax(1)
        second = torch.where(first == second, last.clamp_min(0), second)
        side = _two_means(means, inside, first, second)
        sides[row, :, node] = torch.where(inside, torch.where(side, -1.0, 1.0), 0.0).to(sides)
        group = torch.where(inside & side, node + 1, group)
    return sides


def _two_means(means: Tensor, inside: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Which classes of a node are on the second's side, (S, C)."""
    rows = torch.arange(len(means), device=means.device)
    ends = torch.zeros_like(inside), torch.zeros_like(inside)
    ends[0][rows, first], ends[1][rows, second] = True, True
    centres = means[rows, first], means[rows, second]
    side = ends[1]
    for _ in range(PASSES):
        near, far = ((means - c[:, None]).square().sum(-1) for c in centres)
        side = inside & ((far < near) | ends[1]) & ~ends[0]
        weights = [(inside & on_side).to(means) for on_side in (~side, side)]
        centres = tuple((w[..., None] * means).sum(1) / w.sum(1, keepdim=True).clamp_min(1) for w in weights)  # type: ignore[assignment]
    return side


def any_tree(classes: int) -> Tensor:
    """A tree of all classes in their order, (C, C - 1): what there is before anything is known."""
    sides, nodes, number = torch.zeros(classes, classes - 1), [range(classes)], 0
    for below in nodes:  # which grows
        if len(below) > 1:
            half = len(below) // 2
            sides[list(below[:half]), number], sides[list(below[half:]), number] = 1, -1
            nodes += [below[:half], below[half:]]
            number += 1
    return sides
