r"""Marginal transforms: each unconstrained global z_k is a function of a Gaussian number x_k.

    z = c + s (sinh(d asinh(u) + e) - mu) / sigma,      u = (x - c) / s,      d = exp(t)                             (1)
    mu = sinh(e) C(d),      sigma^2 = (cosh(2 e) C(2 d) - 1) / 2 - mu^2,      C(d) = E[cosh(d asinh(U))],  U ~ N(0, 1)

e is the skew and t the tail of Jones and Pewsey (2009): t > 0 has tails longer than a normal's; 0 and 0 are the
identity. mu and sigma are mean and standard deviation of what they are taken from: skew and tail do not move mean and
variance of x ~ N(c, s^2), so that steps of the Gaussian and steps of these hardly disturb each other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from hierfl.inference.state import State

from ..names import SHAPE

#: the largest skew and tail, in size
MOST_SKEW, MOST_TAIL = 2.0, 1.0
#: where expectations of one normal number are summed: the error of so fine a sum is below 1e-14
_NODES = torch.arange(-10.0, 10.0 + 1e-9, 0.05, dtype=torch.float64)


def nodes(like: Tensor) -> tuple[Tensor, Tensor]:
    """Points and weights (N,) by which functions of a N(0, 1) number are averaged."""
    u = _NODES.to(like)
    weights = (-0.5 * u.square()).exp()
    return u, weights / weights.sum()


@dataclass(frozen=True)
class Marginals:
    """(1), of p numbers; of several clients with guides of their own, (S, p).

    Attributes:
        centre, scale: c and s, (p,).
        skew, tail: e and t, (p,).
    """

    centre: Tensor
    scale: Tensor
    skew: Tensor
    tail: Tensor

    @classmethod
    def none(cls, p: int) -> Tensor:
        """The shared value (4, p) of the identity."""
        shape = torch.zeros(4, p)
        shape[1] = 1
        return shape

    @classmethod
    def unpacked(cls, shape: Tensor) -> Self:
        """Reads the shared value, (4, p); of clients of several fits, (S, 4, p)."""
        return cls(*shape.unbind(-2))

    @classmethod
    def read(cls, shared: State) -> Self | None:
        """Those of a fit; None where they are the identity, or there are none."""
        if SHAPE not in shared or not bool(shared[SHAPE][..., 2:, :].any()):
            return None
        return cls.unpacked(shared[SHAPE])

    @property
    def packed(self) -> Tensor:
        """The marginals as one shared value, (4, p)."""
        return torch.stack([self.centre, self.scale, self.skew, self.tail])

    def shaped(self, skew: Tensor, tail: Tensor) -> Self:
        """The marginals with other skews and tails."""
        return replace(self, skew=skew, tail=tail)

    def some(self, first: int, last: int) -> Self:
        """The part of clients first..last-1, where they are of several fits."""
        if self.skew.dim() == 1:
            return self
        return replace(self, **{f.name: getattr(self, f.name)[first:last] for f in fields(self)})

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """mu and sigma, (p,) each."""
        u, weights = nodes(self.skew)
        grown = self.tail.exp()[..., None] * u.asinh()
        once, twice = ((k * grown).cosh() @ weights for k in (1, 2))
        mu = self.skew.sinh() * once
        return mu, (((2 * self.skew).cosh() * twice - 1) / 2 - mu.square()).sqrt()

    def __call__(self, x: Tensor) -> Tensor:
        """z at x, (..., p)."""
        mu, sigma = self.moments
        u = (x - self.centre) / self.scale
        return self.centre + self.scale * ((self.tail.exp() * u.asinh() + self.skew).sinh() - mu) / sigma

    def inverse(self, z: Tensor) -> Tensor:
        """x at z, (..., p)."""
        mu, sigma = self.moments
        grown = (sigma * (z - self.centre) / self.scale + mu).asinh()
        return self.centre + self.scale * ((grown - self.skew) * (-self.tail).exp()).sinh()

    def log_slope(self, x: Tensor) -> Tensor:
        """log dz_k / dx_k at x, (..., p)."""
        u = (x - self.centre) / self.scale
        grown = self.tail.exp() * u.asinh() + self.skew
        return self.tail + grown.cosh().log() - 0.5 * u.square().log1p() - self.moments[1].log()


def gaussian(marginals: Marginals | None, z: Tensor) -> Tensor:
    """The guide's numbers x of unconstrained globals z, (..., p)."""
    return z if marginals is None else marginals.inverse(z)


def unconstrained(marginals: Marginals | None, x: Tensor) -> Tensor:
    """The unconstrained globals z of the guide's numbers x, (..., p)."""
    return x if marginals is None else marginals(x)


def shape_error(shape: Tensor) -> str:
    """Why a broadcast shape (4, p) is none that a fit makes; empty where it is one."""
    _, scale, skew, tail = shape
    if not bool((scale > 0).all()):
        return "its scales are not positive"
    if not bool((skew.abs() <= MOST_SKEW).all() & (tail.abs() <= MOST_TAIL).all()):
        return f"its skews are beyond {MOST_SKEW:g}, or its tails beyond {MOST_TAIL:g}"
    return ""
