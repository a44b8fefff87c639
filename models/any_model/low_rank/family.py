"""The family of the guide of many globals, see :mod:`..family`: its covariance, of which p^2 numbers are nowhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..family import Family
from .precision import LowRank


@dataclass(frozen=True)
class LowRankFamily(Family):
    """How q(x) follows from a precision that is packed as by :attr:`.precision.LowRank.packed`.

    Where r is p, its algebra is that of the full family, by which it is then done.
    """

    def of_spread(self, precision: Tensor) -> LowRank:
        """The precision of the numbers that are no points."""
        block = LowRank.unpacked(precision).at(self.spread.to(precision.device))
        if self.diagonal:
            return LowRank(block.diagonal_of_all, torch.zeros_like(block.basis), torch.zeros_like(block.gains))
        return block

    def root(self, precision: Tensor) -> Tensor:
        """The root of the precision, as of :class:`..family.Family`: dense, for few numbers."""
        return super().root(LowRank.unpacked(precision).dense)

    def moved(self, noise: Tensor, precision: Tensor) -> Tensor:
        """x - m at draws e of N(0, 1), (..., p)."""
        if precision.shape[0] <= precision.shape[1]:
            return noise @ self.root(precision).T
        spread, whole = self.spread.to(precision.device), torch.zeros_like(noise)
        whole[..., spread] = self.of_spread(precision).drawn(noise[..., spread])
        return whole

    def definite(self, precision: Tensor) -> bool:
        """Whether it is positive definite."""
        return LowRank.unpacked(precision).definite

    def entropy(self, precision: Tensor) -> Tensor:
        """The entropy of the numbers that are no points, ()."""
        block = self.of_spread(precision)
        return 0.5 * (len(block.diagonal) * (1 + math.log(2 * math.pi)) - block.log_det)
