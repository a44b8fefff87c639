"""Random effects are eliminated from sums of products, level by level, innermost outward.

Of effects u ~ N(0, I) with b = L u and G = [Z Y]^T W [Z Y] / s^2,

    F F^T = I + L^T G_zz L                                                                                  (8)
    w = F^-1 L^T G_zY                                                                                       (9)
    [Y]^T V^-1 [Y] = G_YY - w^T w                                                                           (10)
    log |V| gains 2 sum log diag F                                                                          (11)

Y are the columns of the levels above, X and y. What is left of the groups of one level adds up to the G of the next:
patients, clients, regions. Clients eliminate entry by entry (:mod:`.entrywise`), and the server eliminates batches of
whole matrices (:mod:`.batched`).
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

import torch
from torch import Tensor


class Elimination(Protocol):
    """The elimination of one level's effects, from the G of each of its groups, whose first columns are theirs."""

    def factor(self) -> Any:
        """F, (8)."""
        ...

    def half(self, factor: Any) -> Any:
        """w, (9)."""
        ...

    def left(self, half: Any) -> Any:
        """What is left, (10), its upper triangle row by row."""
        ...

    def log_volume(self, factor: Any) -> Any:
        """What log |V| gains, (11)."""
        ...


def eliminate(elimination: Elimination) -> tuple[Any, Any]:
    """What is left of G, its upper triangle row by row, and what log |V| gains."""
    factor = elimination.factor()
    return elimination.left(elimination.half(factor)), elimination.log_volume(factor)


@functools.lru_cache(maxsize=64)
def upper(size: int, device: Any = None) -> Tensor:
    """Rows and columns of an upper triangle, row by row, (2, entries); asked for in each round."""
    return torch.triu_indices(size, size, device=device)


@functools.lru_cache(maxsize=64)
def places(size: int, device: Any = None) -> Tensor:
    """The index of each entry of a symmetric matrix (size, size) in its upper triangle, row by row."""
    up, across = upper(size, device)
    index = up.new_zeros(size, size)
    index[up, across] = torch.arange(len(up), device=device)
    return torch.triu(index) + torch.triu(index, 1).T


def symmetric(of_upper: Tensor, size: int) -> Tensor:
    """(..., size, size) of its upper triangle, row by row."""
    return of_upper[..., places(size, of_upper.device).flatten()].unflatten(-1, (size, size))
