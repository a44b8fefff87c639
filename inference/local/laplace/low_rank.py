"""A curvature of low rank and a diagonal; see :mod:`hierfl.inference.local.laplace.curvature`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hierfl.ppl.gaussian_factors import eigh

from .forms import matrix_times


@dataclass(frozen=True)
class LowRank:
    """V V^T + diag(rest): (S, d, k) and (S, d)."""

    factor: Tensor
    rest: Tensor

    def times(self, v: Tensor) -> Tensor:
        """H v."""
        return matrix_times(self.factor, matrix_times(self.factor.mT, v)) + self.rest * v

    def scaled(self, r: Tensor) -> ScaledLowRank:
        """B by Woodbury's identity."""
        more = r.square() * self.rest
        within = self.factor * (r * (1 + more).rsqrt())[..., None]
        values, vectors = eigh(within.mT @ within)
        return ScaledLowRank(more, within @ vectors, values.clamp_min(0))


@dataclass(frozen=True)
class ScaledLowRank:
    """B = L (I + U U^T) L, L^2 = diag(level) with level = 1 + more (S, d), U (S, d, k) with U^T U = diag(values)."""

    more: Tensor
    within: Tensor
    values: Tensor

    @property
    def level(self) -> Tensor:
        """1 + more."""
        return 1 + self.more

    def _inner(self, v: Tensor, power: float) -> Tensor:
        """(I + U U^T)^power v."""
        # Log1p and expm1: where U says nothing of a direction both are zero.
        change = torch.expm1(power * torch.log1p(self.values))
        positive = self.values > 0
        factors = torch.where(positive, change / torch.where(positive, self.values, 1.0), power)
        return v + matrix_times(self.within, factors * matrix_times(self.within.mT, v))

    def solve(self, v: Tensor) -> Tensor:
        """B^-1 v."""
        return self._inner(v * self.level.rsqrt(), -1.0) * self.level.rsqrt()

    def root(self, v: Tensor) -> Tensor:
        """diag(level)^-1/2 (I + U U^T)^-1/2 v."""
        return self._inner(v, -0.5) * self.level.rsqrt()

    @property
    def log_det(self) -> Tensor:
        """log |B|."""
        return self.more.log1p().sum(-1) + torch.log1p(self.values).sum(-1)

    @cached_property
    def _scaled(self) -> Tensor:
        return self.within * self.level.rsqrt()[..., None]

    def data_share(self, number: int) -> Tensor:
        """Blocks of I - B^-1."""
        part = self._scaled.unflatten(1, (number, -1))
        alone = torch.diag_embed((self.more / self.level).unflatten(-1, (number, -1)))
        return alone + (part / (1 + self.values)[:, None, None]) @ part.mT

    def data_share_times(self, v: Tensor) -> Tensor:
        """(I - B^-1) v."""
        inside = matrix_times(self._scaled.mT, v) / (1 + self.values)
        return v * self.more / self.level + matrix_times(self._scaled, inside)
