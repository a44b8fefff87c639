"""Elimination of batches of whole matrices, as the server does it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batched:
    """See :class:`.elimination.Elimination`.

    Attributes:
        root: L, (..., 1, q, q).
        gram: G, (..., R, m, m).
    """

    root: Tensor
    gram: Tensor

    @cached_property
    def q(self) -> int:
        """Effects."""
        return self.root.shape[-1]

    def factor(self) -> Tensor:
        """F, (..., R, q, q)."""
        identity = torch.eye(self.q, dtype=self.root.dtype, device=self.root.device)
        return torch.linalg.cholesky_ex(identity + self.root.mT @ self.gram[..., : self.q, : self.q] @ self.root).L

    def half(self, factor: Tensor) -> Tensor:
        """w, (..., R, q, m - q)."""
        return torch.linalg.solve_triangular(factor, self.root.mT @ self.gram[..., : self.q, self.q :], upper=False)

    def left(self, half: Tensor) -> Tensor:
        """What is left, (..., R, c)."""
        left = self.gram[..., self.q :, self.q :] - half.mT @ half
        up, across = torch.triu_indices(left.shape[-1], left.shape[-1], device=left.device)
        return left[..., up, across]

    def log_volume(self, factor: Tensor) -> Tensor:
        """(..., R)."""
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def effects(self, others: Tensor, z: Tensor) -> Tensor:
        """Effects u (..., R, q, 1) given coefficients, moved by standard normals z (..., R, q).

        Args:
            others: coefficients of the columns between the effects' and y, (..., R or 1, c, 1).
            z: zero for means.
        """
        factor, root = self.factor(), self.root.expand(*self.gram.shape[:-2], self.q, self.q)
        away = self.gram[..., : self.q, -1] - (self.gram[..., : self.q, self.q : -1] @ others).squeeze(-1)
        v = torch.linalg.solve_triangular(factor, root.mT @ away[..., None], upper=False)
        return torch.linalg.solve_triangular(factor.mT, v + z[..., None], upper=True)
