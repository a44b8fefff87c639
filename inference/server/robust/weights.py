"""Weights that no client can have too much of."""

from __future__ import annotations

import torch
from torch import Tensor

#: no client's weight counts as more than so many times the median of all
MOST_WEIGHT = 3.0


def middle(values: Tensor, present: Tensor) -> Tensor:
    """The median over the first dimension of what is there, (*shape) of (R, *shape); zero where nothing is.

    Of an even number it is the mean of the two in the middle.
    """
    count = present.sum(0, keepdim=True)
    ordered = torch.where(present, values, torch.inf).sort(0).values
    low, high = ((count - 1).clamp_min(0) // 2), (count // 2).clamp(max=len(values) - 1)
    median = 0.5 * (ordered.gather(0, low) + ordered.gather(0, high))
    return torch.where(count > 0, median, 0.0).squeeze(0)


def capped(weights: Tensor, most: float = MOST_WEIGHT) -> Tensor:
    """Weights (R, ...), none below zero, of which none is more than ``most`` times the median of those above zero."""
    return weights.minimum(most * middle(weights, weights > 0))
