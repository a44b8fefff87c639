"""State of the search for restricted estimates, which the server keeps between rounds; see :mod:`.restricted`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from hierfl.inference.server.explored import NO_HEIGHT
from hierfl.inference.state import State

from .restricted_point import Point

#: least length of a flat direction's part in theta, or in the coefficients, with which it counts as flat there
PART = 0.1


@dataclass(frozen=True)
class RestrictedState:
    """The search's state, in coordinates along which the likelihood has a maximum. Those of theta come first.

    Attributes:
        origin, basis: numbers (K,), and orthonormal directions (K, k) from there, without those that go to infinity.
        best: coordinates of the highest point, (k,); ``height``, ``penalty``, ``gradient`` and ``curvature`` as of
            :class:`.restricted_point.Point`.
        slope, bend: of the penalty, first and second derivatives, (t,) and (t, t).
        fresh: slopes that are being measured around the best point, (t,).
        turning: the slope of the coefficients' information I, (t, p, p).
        measured: how many numbers' slopes are measured around the best point, ().
        began, rounds: theta where they were measured last, (t,), and how often they were, ().
        next: coordinates of the next point, (k,).
        points: number of points so far, ().
        halvings: how often the current step was halved, ().
        done: 1 at the end, ().
    """

    origin: Tensor
    basis: Tensor
    best: Tensor
    height: Tensor
    penalty: Tensor
    gradient: Tensor
    curvature: Tensor
    slope: Tensor
    bend: Tensor
    fresh: Tensor
    turning: Tensor
    measured: Tensor
    began: Tensor
    rounds: Tensor
    next: Tensor
    points: Tensor
    halvings: Tensor
    done: Tensor

    @classmethod
    def begin(cls, at: Tensor, p: int, flat: Tensor) -> Self:
        """The state before the first round.

        Args:
            at: numbers, (K,), whose last p are the coefficients.
            p: coefficients.
            flat: directions of length one along which the likelihood has no end, (K, m).
        """
        t, zero = len(at) - p, at.new_zeros(())
        basis = torch.block_diag(_others(flat[:t]), _others(flat[t:]))
        k, t = basis.shape[1], _others(flat[:t]).shape[1]
        start = at.new_zeros(k)
        return cls(
            at, basis, start, zero + NO_HEIGHT, zero, at.new_zeros(k), at.new_zeros(k, k), at.new_zeros(t),
            at.new_zeros(t, t), at.new_zeros(t), at.new_zeros(t, k - t, k - t), zero, at.new_zeros(t), zero, start,
            zero, zero, zero,
        )  # fmt: skip

    @classmethod
    def read(cls, state: State) -> Self:
        """What :meth:`state` has written."""
        return cls(**{f.name: state[f"restricted.{f.name}"] for f in fields(cls)})

    def state(self) -> State:
        """All of it by name."""
        return {f"restricted.{f.name}": getattr(self, f.name) for f in fields(self)}

    @property
    def t(self) -> int:
        """Numbers of theta."""
        return len(self.slope)

    @property
    def p(self) -> int:
        """Coefficients."""
        return len(self.best) - self.t

    @property
    def highest(self) -> Point:
        """The best point."""
        return Point(self.best, self.height, self.penalty, self.gradient, self.curvature, self.t)

    @property
    def asked(self) -> Tensor:
        """Numbers of :attr:`next`, (K,)."""
        return self.origin + self.basis @ self.next

    @property
    def best_numbers(self) -> Tensor:
        """Numbers of the best point, (K,)."""
        return self.origin + self.basis @ self.best


def _others(flat: Tensor) -> Tensor:
    """Orthonormal directions (n, n - r) orthogonal to the flat ones' parts (n, m)."""
    vectors, values, _ = torch.linalg.svd(flat, full_matrices=True)
    return vectors[:, int((values > PART).sum()) :]
