"""Correlations of residuals within a series, as functions of one number z on the real line.

ar1     rho = tanh(z),      phi(d) = rho^d at a whole distance d
car1    rho = 1 / (1 + exp(-z)),   phi(d) = rho^d at any distance d
cs      rho = least + (1 - least) / (1 + exp(-z)),   least = -1 / (n - 1) of a group of up to n
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

#: rho that a fit begins with, at a distance of one, and that of a group
START, START_OF_GROUP = 0.6, 0.2


@dataclass(frozen=True)
class Serial:
    """One kind of correlation.

    Attributes:
        kind: "ar1", "car1" or "cs".
        least: the least rho.
    """

    kind: str
    least: float

    @classmethod
    def from_correlation(cls, correlation: Any) -> Serial | None:
        """Returns the correlation that a :class:`~hierfl.data.formula.correlation.Correlation` says; None for none."""
        if correlation is None:
            return None
        least = {"ar1": -1.0, "car1": 0.0}
        # Before anything is known of the rows, groups may be of any size.
        return cls(correlation.kind, least.get(correlation.kind, -1 / max(1, correlation.most - 1)))

    @property
    def most(self) -> float:
        """|z| beyond which it counts as this: double precision knows no rho nearer to its end."""
        return 17.0 if self.kind == "ar1" else 36.0

    @property
    def start(self) -> Tensor:
        """z to begin with, ()."""
        rho = START_OF_GROUP if self.kind == "cs" else START
        share = torch.tensor((rho - self.least) / (1 - self.least)).double()
        return 0.5 * share.logit() if self.kind == "ar1" else share.logit()

    def rho(self, z: Tensor) -> Tensor:
        """The correlation rho at z (...)."""
        z = z.clamp(-self.most, self.most)
        return z.tanh() if self.kind == "ar1" else self.least + (1 - self.least) * z.sigmoid()

    def log_uniform(self, z: Tensor) -> Tensor:
        """The log density of z (...) where rho is uniform between its ends, but for a constant."""
        u = 2 * z if self.kind == "ar1" else z
        return logsigmoid(u) + logsigmoid(-u)

    def phi(self, z: Tensor, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """rho^distance and its first two derivatives in z, of z (..., 1) and distances (..., D) from 1 or above 0."""
        if self.kind == "car1":
            share = (-z).sigmoid()
            value = (distance * logsigmoid(z)).exp()
            slope = distance * share * value
            return value, slope, distance * share * (slope - z.sigmoid() * value)
        rho = z.tanh()
        by_z = 1 - rho.square()  # d rho / d z; its own derivative is -2 rho by_z
        # Powers of zero: the distance is a whole number from 1, and 0^0 is 1.
        first, second = (
            distance * rho.pow(distance - 1),
            distance * (distance - 1) * rho.pow((distance - 2).clamp_min(0)),
        )
        return rho.pow(distance), first * by_z, second * by_z.square() - 2 * first * rho * by_z

    def matrix(self, rho: Tensor, times: Tensor) -> Tensor:
        """Correlations of one series' residuals (n, n), at its times (n,)."""
        if self.kind == "cs":
            identity = torch.eye(len(times)).to(rho)
            return identity + rho * (1 - identity)
        return rho.pow((times[:, None] - times).abs())
