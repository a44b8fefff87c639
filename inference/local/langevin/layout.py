"""How values of chains lie in memory."""

from __future__ import annotations

from torch import Tensor


def like_event(by_chain: Tensor, like: Tensor) -> Tensor:
    """(C, S) beside (C, S, 1, *event)."""
    return by_chain.view(*by_chain.shape, *[1] * (like.dim() - 2))


def sum_over_event(terms: Tensor) -> Tensor:
    """(C, S, 1, ...) -> (C, S)."""
    return terms.flatten(2).sum(2)
