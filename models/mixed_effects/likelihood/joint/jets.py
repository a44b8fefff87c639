"""Matrices as functions of k numbers, with their first and second derivatives.

What is bilinear in two of them has, by the product rule,

    (AB)_a = A_a B + A B_a,     (AB)_ab = A_ab B + A_a B_b + A_b B_a + A B_ab,

and of H, with X = H^-1 B: X_a = H^-1 (B_a - H_a X), X_ab = H^-1 (B_ab - H_ab X - H_a X_b - H_b X_a).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: of none, one or two of the numbers, in order: by which it is derived
Order = tuple[int, ...]


@dataclass(frozen=True)
class Jet:
    """A matrix and its derivatives; those that are zero are left out.

    Attributes:
        parts: {(): value, (a,): first derivatives, (a, b): second ones, a <= b}.
    """

    parts: Mapping[Order, Tensor] = field(default_factory=dict)

    @classmethod
    def constant(cls, value: Tensor) -> Jet:
        """Returns a constant, a function of none of the numbers."""
        return cls({(): value})

    @property
    def value(self) -> Tensor:
        """The matrix."""
        return self.parts[()]

    def linear(self, turn: Callable[[Tensor], Tensor]) -> Jet:
        """What a linear function makes of it."""
        return Jet({order: turn(part) for order, part in self.parts.items()})

    def __add__(self, other: Jet) -> Jet:
        parts = dict(self.parts)
        for order, part in other.parts.items():
            parts[order] = parts[order] + part if order in parts else part
        return Jet(parts)

    def __sub__(self, other: Jet) -> Jet:
        return self + other.linear(torch.neg)

    @property
    def numbers(self) -> set[int]:
        """The numbers of which it is a function."""
        return {a for order in self.parts for a in order}


def bilinear(function: Callable[[Tensor, Tensor], Tensor], first: Jet, other: Jet) -> Jet:
    """What is bilinear in both."""
    parts: dict[Order, Tensor] = {}
    for (i, a), (j, b) in itertools.product(first.parts.items(), other.parts.items()):
        if len(i) + len(j) > 2:
            continue
        order = tuple(sorted((*i, *j)))
        term = function(a, b)
        if len(i) == len(j) == 1 and i == j:
            term = term * 2
        parts[order] = parts[order] + term if order in parts else term
    return Jet(parts)


def orders(numbers: Sequence[int]) -> list[Order]:
    """The orders of derivatives, first ones before second ones."""
    return [(a,) for a in numbers] + list(itertools.combinations_with_replacement(numbers, 2))


def solved(h: Jet, solve: Callable[[Tensor], Tensor], right: Jet) -> Jet:
    """H^-1 B, by what solves with H itself."""
    parts: dict[Order, Tensor] = {(): solve(right.value)}
    for order in orders(sorted(h.numbers | right.numbers)):
        rest = right.parts.get(order, torch.zeros_like(right.value))
        for part, left in _splits(order):
            if part in h.parts and left in parts:
                rest = rest - h.parts[part] @ parts[left]
        parts[order] = solve(rest)
    return Jet(parts)


def log_determinant(h: Jet, solve: Callable[[Tensor], Tensor], value: Tensor) -> Jet:
    """log |H|, (...), of H (..., m, m) and its value."""
    numbers = sorted(h.numbers)
    moved = {a: solve(h.parts[(a,)]) for a in numbers if (a,) in h.parts}
    parts: dict[Order, Tensor] = {(): value}
    for a, part in moved.items():
        parts[(a,)] = part.diagonal(dim1=-2, dim2=-1).sum(-1)
    for a, b in itertools.combinations_with_replacement(numbers, 2):
        total = torch.zeros_like(value)
        if (a, b) in h.parts:
            total = total + solve(h.parts[a, b]).diagonal(dim1=-2, dim2=-1).sum(-1)
        if a in moved and b in moved:
            total = total - (moved[a] * moved[b].mT).sum((-1, -2))
        parts[a, b] = total
    return Jet(parts)


def _splits(order: Order) -> list[tuple[Order, Order]]:
    """Which derivatives of H and of X are in a product's, but for H X_order itself."""
    if len(order) == 1:
        return [(order, ())]
    a, b = order
    return [(order, ()), ((a,), (b,)), ((b,), (a,))]
