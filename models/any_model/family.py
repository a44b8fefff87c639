"""Families of the guide of the globals, by their covariance.

    full        S = A^-1                     A: the curvature of the bound, whose sums clients send
    diagonal    S = diag(A)^-1               mean field: its optimum has the precision E[-d^2 / dx_k^2] of each number
    point       S = 0                        all numbers; of any family those that the model has as parameters

Steps of the mean use the whole curvature in all families, so that a Gaussian posterior's mean is found in one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import cholesky_ex

from .local import inverse_root

#: how far a precision is from a symmetric matrix at most, relative to its largest entry
SYMMETRIC = 1e-9


@dataclass(frozen=True)
class Family:
    """A form of q(x)'s covariance, and how it follows from the curvature.

    Attributes:
        spread: which numbers have a spread, (p,) of bool; the others are points.
        diagonal: whether numbers with a spread are independent.
    """

    spread: Tensor
    diagonal: bool = False

    def _block(self, precision: Tensor) -> Tensor:
        """The precision of the numbers that are no points."""
        at = self.spread.to(precision.device).nonzero().squeeze(-1)
        block = precision[..., at[:, None], at]
        return block.diagonal(dim1=-2, dim2=-1).diag_embed() if self.diagonal else block

    def root(self, precision: Tensor) -> Tensor:
        """A lower triangular root of the covariance, (..., p, p); rows of points are 0."""
        if not precision.shape[-1]:
            return precision
        at = self.spread.to(precision.device).nonzero().squeeze(-1)
        root = torch.zeros_like(precision)
        root[..., at[:, None], at] = inverse_root(self._block(precision))
        return root

    def moved(self, noise: Tensor, precision: Tensor) -> Tensor:
        """x - m at draws e of N(0, 1), (..., p)."""
        return noise @ self.root(precision).T

    def root_of_spread(self, precision: Tensor) -> Tensor:
        """:meth:`root` of the numbers that are no points, (r, r)."""
        spread = self.spread.to(precision.device)
        return self.root(precision)[spread][:, spread]

    def definite(self, precision: Tensor) -> bool:
        """Whether it is symmetric and positive definite."""
        if not len(precision):
            return True
        skewed = bool((precision - precision.mT).abs().max() > SYMMETRIC * precision.abs().max())
        return not skewed and not bool(cholesky_ex(precision).info)

    def entropy(self, precision: Tensor) -> Tensor:
        """The entropy of the numbers that are no points, ()."""
        block = self._block(precision)
        return 0.5 * (len(block) * (1 + math.log(2 * math.pi)) - torch.logdet(block))

    def within(self, points: Tensor, mean: Tensor) -> Tensor:
        """Points (M, r) of the numbers that are no points as points of all, (M, p): the others are the mean's."""
        whole = mean.expand(len(points), -1).clone()
        whole[:, self.spread.to(mean.device)] = points
        return whole
