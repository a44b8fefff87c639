"""Arithmetic of Taylor polynomials of second degree: numbers that know their first and second derivatives.

See Griewank and Walther (2008, 13). torch's own forward mode takes as long, and a second to load. Derivatives are the
first dimensions, so that what is multiplied lies in long rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.shapes import broadcast_shapes


@dataclass(frozen=True)
class Taylor:
    """Numbers as functions of k others.

    Attributes:
        value: (*shape).
        slope: first derivatives, (k, *shape).
        bend: second ones, (k, k, *shape).
    """

    value: Tensor
    slope: Tensor
    bend: Tensor

    @classmethod
    def variables(cls, at: Tensor) -> list[Taylor]:
        """The k numbers (k,) themselves."""
        k = len(at)
        identity, nothing = torch.eye(k, dtype=at.dtype, device=at.device), at.new_zeros(k, k)
        return [cls(value, slope, nothing) for value, slope in zip(at.unbind(), identity.unbind(), strict=True)]

    @classmethod
    def stack(cls, parts: Sequence[Taylor]) -> Taylor:
        """Stacks numbers of one shape, one after the other along a new first dimension."""
        shape = broadcast_shapes(*(part.value.shape for part in parts))
        parts = [part.expand(shape) for part in parts]
        return cls(
            torch.stack([part.value for part in parts]), torch.stack([part.slope for part in parts], 1),
            torch.stack([part.bend for part in parts], 2),
        )  # fmt: skip

    @property
    def shape(self) -> torch.Size:
        """The shape of the numbers."""
        return self.value.shape

    @property
    def device(self) -> torch.device:
        """The device of the numbers."""
        return self.value.device

    def expand(self, shape: torch.Size) -> Taylor:
        """The same, seen as of a larger shape."""
        if self.value.shape == shape:
            return self
        k, more = len(self.slope), [1] * (len(shape) - self.value.dim())
        slope = self.slope.reshape(k, *more, *self.value.shape).expand(k, *shape)
        bend = self.bend.reshape(k, k, *more, *self.value.shape).expand(k, k, *shape)
        return Taylor(self.value.expand(shape), slope, bend)

    def __getitem__(self, at: slice | int | Tensor | tuple[Tensor, ...]) -> Taylor:
        """Indexes the first dimensions of the shape."""
        own, all_ = at if isinstance(at, tuple) else (at,), slice(None)
        return Taylor(self.value[own], self.slope[(all_, *own)], self.bend[(all_, all_, *own)])

    def summed(self, groups: int) -> Taylor:
        """Sums the numbers of each of so many equal parts of the last dimension of the shape."""
        parts = (part.unflatten(-1, (groups, -1)).sum(-2) for part in (self.value, self.slope, self.bend))
        return Taylor(*parts)

    def among(self, variables: Sequence[Taylor]) -> Taylor:
        """The same numbers as functions of others, of which each of the k is linear.

        Args:
            variables: the k in terms of the others, numbers ().
        """
        turn = torch.stack([variable.slope for variable in variables])  # (k, K)
        slope = torch.einsum("aA,a...->A...", turn, self.slope)
        return Taylor(self.value, slope, torch.einsum("aA,bB,ab...->AB...", turn, turn, self.bend))

    def __add__(self, other: Taylor | Tensor | float) -> Taylor:
        if isinstance(other, Taylor):
            first, two = together(self, other)
            return Taylor(first.value + two.value, first.slope + two.slope, first.bend + two.bend)
        value = self.value + other
        return Taylor(value, *self.expand(value.shape).derivatives)

    __radd__ = __add__

    @property
    def derivatives(self) -> tuple[Tensor, Tensor]:
        """First and second."""
        return self.slope, self.bend

    def __mul__(self, other: Taylor | Tensor | float) -> Taylor:
        if isinstance(other, Taylor):
            first, two = together(self, other)
            a, b = first.value, two.value
            cross = first.slope[:, None] * two.slope
            bend = (a * two.bend).add_(b * first.bend).add_(cross).add_(cross.transpose(0, 1))
            return Taylor(a * b, (a * two.slope).add_(b * first.slope), bend)
        if isinstance(other, Tensor):
            first = self.expand(broadcast_shapes(self.shape, other.shape))
            return Taylor(first.value * other, first.slope * other, first.bend * other)
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
        square = self.slope[:, None] * self.slope
        return Taylor(value, first * self.slope, (first * self.bend).add_(second * square))

    def sqrt(self) -> Taylor:
        root = self.value.sqrt()
        return self.through(root, 0.5 / root, -0.25 / (root * self.value))

    def log(self) -> Taylor:
        return self.through(self.value.log(), self.value.reciprocal(), -self.value.pow(-2))

    def exp(self) -> Taylor:
        value = self.value.exp()
        return self.through(value, value, value)


def together(first: Taylor, other: Taylor) -> tuple[Taylor, Taylor]:
    """Both with as many dimensions: derivatives come first, and do not broadcast by themselves."""
    if first.value.dim() == other.value.dim():
        return first, other
    shape = broadcast_shapes(first.shape, other.shape)
    return first.expand(shape), other.expand(shape)
