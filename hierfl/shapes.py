"""Shapes of tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def broadcast_shapes(*shapes: tuple[int, ...]) -> torch.Size:
    """The same as ``torch.broadcast_shapes``, which loads SymPy when it is first called: 0.3 CPU s."""
    return torch.Size(np.broadcast_shapes(*(tuple(shape) for shape in shapes)))


def by_row(value: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """What is done to every number of a row (R, *shape), once for a row whose numbers are all one in memory.

    Args:
        value: such as zeros that were expanded.
        change: keeps all dimensions but the first.
    """
    if value.dim() < 2 or any(value.stride()[1:]) or not value.numel():
        return change(value)
    changed = change(value[(slice(None), *[slice(1)] * (value.dim() - 1))])
    return changed.expand(len(changed), *value.shape[1:])
