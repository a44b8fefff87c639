"""A curvature of all effects of a client, in an arrow's shape: small blocks, what is across, and a dense rest.

H = I + [ D    C ]     with F_D F_D^T = I + D  block by block,   w = F_D^-1 C,
        [ C^T  A ]     F_R F_R^T = I + A - w^T w,                log |H| = 2 sum log diag F_D + 2 sum log diag F_R
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..quadrature.groups import root_of


@dataclass(frozen=True)
class Arrow:
    """H, factored.

    Attributes:
        small: F_D, (..., g, q, q).
        half: w, (..., g, q, R).
        dense: F_R, (..., R, R).
    """

    small: Tensor
    half: Tensor
    dense: Tensor

    @classmethod
    def from_blocks(cls, diagonal: Tensor, across: Tensor, rest: Tensor) -> Arrow:
        """Returns the factor of D (..., g, q, q), C (..., g, q, R) and A (..., R, R); NaN where H is not positive
        definite.
        """
        small = root_of(diagonal + _eye(diagonal))
        half = lower_solve(small, across)
        flat = half.flatten(-3, -2)
        return cls(small, half, root_of(rest + _eye(rest) - flat.mT @ flat))

    @property
    def log_volume(self) -> Tensor:
        """log |H| / 2, (...)."""
        small = self.small.diagonal(dim1=-2, dim2=-1).log().sum((-1, -2))
        return small + self.dense.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def forward(self, first: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """F^-1 of right sides (..., g, q, m) and (..., R, m)."""
        top = lower_solve(self.small, first)
        left = rest - self.half.flatten(-3, -2).mT @ top.flatten(-3, -2)
        return top, torch.linalg.solve_triangular(self.dense, left, upper=False)

    def back(self, first: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """F^-T of right sides of the same shapes."""
        low = torch.linalg.solve_triangular(self.dense.mT, rest, upper=True)
        top = first - (self.half.flatten(-3, -2) @ low).unflatten(-2, self.half.shape[-3:-1])
        return upper_solve(self.small, top), low

    def solve(self, first: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """H^-1 of right sides of the same shapes."""
        return self.back(*self.forward(first, rest))

    def covariances(self) -> tuple[Tensor, Tensor]:
        """The covariances H^-1: the blocks of the first part, (..., g, q, q), and all of the rest, (..., R, R)."""
        identity = torch.eye(self.dense.shape[-1]).to(self.dense)
        root = torch.linalg.solve_triangular(self.dense, identity.expand_as(self.dense), upper=False).mT  # F_R^-T
        follow = upper_solve(self.small, (self.half.flatten(-3, -2) @ root).unflatten(-2, self.half.shape[-3:-1]))
        own = upper_solve(self.small, _eye(self.small).expand_as(self.small))
        return own @ own.mT + follow @ follow.mT, root @ root.mT


def lower_solve(small: Tensor, right: Tensor) -> Tensor:
    """F^-1 of many small triangles (..., q, q)."""
    return right / small if small.shape[-1] == 1 else torch.linalg.solve_triangular(small, right, upper=False)


def upper_solve(small: Tensor, right: Tensor) -> Tensor:
    """F^-T likewise."""
    return right / small if small.shape[-1] == 1 else torch.linalg.solve_triangular(small.mT, right, upper=True)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
