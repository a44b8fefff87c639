"""Arithmetic of Taylor polynomials of second degree: numbers that know their first and second derivatives.

(torch's own forward mode takes as long, and a second to load; see Griewank and Walther, 2008, 13.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Taylor:
    """Numbers as functions of k others.

    Attributes:
        value: (*shape).
        slope: first derivatives, (*shape, k).
        bend: second ones, (*shape, k, k).
    """

    value: Tensor
    slope: Tensor
    bend: Tensor

    @classmethod
    def variables(cls, at: Tensor) -> list[Taylor]:
        """The k numbers (k,) themselves."""
        k = len(at)
        one, nothing = torch.eye(k, dtype=at.dtype, device=at.device), at.new_zeros(k, k)
        return [cls(value, slope, nothing) for value, slope in zip(at.unbind(), one.unbind(), strict=True)]

    @classmethod
    def stack(cls, parts: Sequence[Taylor]) -> Taylor:
        """Of one shape, one after the other along a new first dimension."""
        shape = torch.broadcast_shapes(*(part.value.shape for part in parts))
        k = parts[0].slope.shape[-1]
        return cls(
            torch.stack([part.value.expand(shape) for part in parts]),
            torch.stack([part.slope.expand(*shape, k) for part in parts]),
            torch.stack([part.bend.expand(*shape, k, k) for part in parts]),
        )

    @property
    def shape(self) -> torch.Size:
        """Of the numbers."""
        return self.value.shape

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.value.device

    def __getitem__(self, at: slice | int | Tensor | tuple[Tensor, ...]) -> Taylor:
        """Along the first dimensions of the shape."""
        return Taylor(self.value[at], self.slope[at], self.bend[at])

    def summed(self, groups: int) -> Taylor:
        """Over so many numbers that the last dimension of the shape has for each of the others that it has."""
        return Taylor(
            self.value.unflatten(-1, (groups, -1)).sum(-2), self.slope.unflatten(-2, (groups, -1)).sum(-3),
            self.bend.unflatten(-3, (groups, -1)).sum(-4),
        )  # fmt: skip

    def __add__(self, other: Taylor | Tensor | float) -> Taylor:
        if isinstance(other, Taylor):
            return Taylor(self.value + other.value, self.slope + other.slope, self.bend + other.bend)
        value = self.value + other
        more = value.dim() - self.value.dim()
        k = self.slope.shape[-1]
        if more or value.shape != self.value.shape:
            return Taylor(value, self.slope.expand(*value.shape, k), self.bend.expand(*value.shape, k, k))
        return Taylor(value, self.slope, self.bend)

    __radd__ = __add__

    def __mul__(self, other: Taylor | Tensor | float) -> Taylor:
        if isinstance(other, Taylor):
            a, b = self.value, other.value
            cross = self.slope[..., :, None] * other.slope[..., None, :]
            return Taylor(
                a * b, a[..., None] * other.slope + b[..., None] * self.slope,
                a[..., None, None] * other.bend + b[..., None, None] * self.bend + cross + cross.mT,
            )  # fmt: skip
        if isinstance(other, Tensor):
            return Taylor(self.value * other, self.slope * other[..., None], self.bend * other[..., None, None])
        return Taylor(self.value * other, self.slope * other, self.bend * other)

    __rmul__ = __mul__

    def __neg__(self) -> Taylor:
        return self * -1.0

    def __sub__(self, other: Taylor | Tensor | float) -> Taylor:
        return self + (-other)

    def __rsub__(self, other: Tensor | float) -> Taylor:
        return -self + other

    def __truediv__(self, other: Taylor) -> Taylor:
        return self * other.through(other.value.reciprocal(), -other.value.pow(-2), 2 * other.value.pow(-3))

    def __rtruediv__(self, other: Tensor | float) -> Taylor:
        return self.through(self.value.reciprocal(), -self.value.pow(-2), 2 * self.value.pow(-3)) * other

    def through(self, value: Tensor, first: Tensor, second: Tensor) -> Taylor:
        """f of it, by f's value and derivatives there."""
        square = self.slope[..., :, None] * self.slope[..., None, :]
        return Taylor(
            value, first[..., None] * self.slope, first[..., None, None] * self.bend + second[..., None, None] * square
        )

    def sqrt(self) -> Taylor:
        root = self.value.sqrt()
        return self.through(root, 0.5 / root, -0.25 / (root * self.value))

    def log(self) -> Taylor:
        return self.through(self.value.log(), self.value.reciprocal(), -self.value.pow(-2))

    def exp(self) -> Taylor:
        value = self.value.exp()
        return self.through(value, value, value)
