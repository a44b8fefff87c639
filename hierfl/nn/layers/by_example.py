"""Functions of examples, for examples of clients."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def by_example(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies to (S, n, *event) what takes (S n, *event)."""
    return function(x.flatten(0, 1)).unflatten(0, x.shape[:2])
