"""The climb of a guide whose precision is a diagonal and a part of low rank.

Where the part of low rank leaves much of the curvature, a step by it is a poor Newton step. What gradients have done
since says how it is to be corrected: it is the first matrix of a limited-memory quasi-Newton step (Nocedal, 1980).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..guide import NO_BOUND, NOISE, SETTLED, Climb
from .precision import LowRank
from .sketch import Sketched

#: steps that are remembered
STEPS = 20
#: what a remembered step's curvature is at least, relative to that of the guide
CURVED = 1e-3
#: where all log joints are quadratic, the guide has arrived where a step moves means by less, in standard deviations
SETTLED_EXACT = 1e-7
#: of so many numbers errors of the bound add up; those of more are independent
MAX_CORRELATED_NUMBERS = 16
#: the shortest share of a step that is tried: one by a part of the curvature may be far too long
SHORTEST = 2.0**-14
#: a step is shorter than all before where it is by this factor: then the climb goes on, whether the bound rises or not
SHORTER = 0.8


@dataclass(frozen=True)
class LowRankClimb(Climb):
    """See :class:`..guide.Climb`; precisions are packed, and curvatures :class:`.sketch.Sketched`.

    Attributes:
        moves: of the mean, the last first, (STEPS, p); zeros where there are none yet.
        falls: by how much gradients have fallen along these, (STEPS, p).
        gradient: at the best guide, (p,).
        shortest: of the lengths of steps so far, ().
    """

    moves: Tensor
    falls: Tensor
    gradient: Tensor
    shortest: Tensor
    least_share: ClassVar[float] = SHORTEST

    @classmethod
    def begin(cls, mean: Tensor, precision: Tensor, within: float = SETTLED) -> Self:
        """The state before the first round."""
        unit, none = mean.new_ones(()), mean.new_zeros(STEPS, len(mean))
        first = Climb.begin(mean, precision, within)
        return cls(**vars(first), moves=none, falls=none, gradient=torch.zeros_like(mean), shortest=-NO_BOUND * unit)

    def between(self) -> Tensor:
        """The precision from the best guide's to the target, as far as the share."""
        old, new = LowRank.unpacked(self.precision), LowRank.unpacked(self.target)
        return old.towards(new, float(self.share)).packed

    def towards(self, old: Tensor, curvature: Sketched) -> Tensor:
        """The precision of a sketched curvature."""
        return curvature.precision(LowRank.unpacked(old)).packed

    def sd(self, precision: Tensor) -> Tensor:
        """Standard deviations (p,)."""
        return LowRank.unpacked(precision).variance.sqrt()

    def noise(self, numbers: float, *, exact: bool) -> float:
        """A fall of the bound that is none; of quadratics one number's, since their guide stays as wide."""
        return NOISE if exact else NOISE * min(numbers, (MAX_CORRELATED_NUMBERS * numbers) ** 0.5)

    def newton(self, target: Tensor, gradient: Tensor) -> Tensor:
        """The quasi-Newton step of the mean, (p,), by the two loops of Nocedal (1980)."""
        precision, left, shares = LowRank.unpacked(target), gradient, []
        if precision.basis.shape[1] >= len(gradient):
            return precision.solve(gradient)
        pairs = [pair for pair in zip(self.moves, self.falls, strict=True) if _curved(*pair, precision)]
        for s, y in pairs:
            shares.append((s @ left) / (s @ y))
            left = left - shares[-1] * y
        step = precision.solve(left)
        for (s, y), share in zip(reversed(pairs), reversed(shares), strict=True):
            step = step + (share - (y @ step) / (s @ y)) * s
        return step

    def after(self, bound: Tensor, gradient: Tensor, curvature: Sketched, *, exact: bool, numbers: float) -> Self:
        """Updates the state at the guide that was tried; see :meth:`..guide.Climb.after`."""
        moved = self.guide()[0] - self.mean
        with_move = self
        if float(self.record) > NO_BOUND and bool(moved.any()) and bool(gradient.isfinite().all()):
            moves = torch.cat([moved[None], self.moves[:-1]])
            falls = torch.cat([(self.gradient - gradient)[None], self.falls[:-1]])
            with_move = replace(self, moves=moves, falls=falls)
        made = Climb.after(with_move, bound, gradient, curvature, exact=exact, numbers=numbers)
        if made.mean is self.mean:  # the step was too long
            return made
        made = replace(made, gradient=gradient, shortest=torch.minimum(self.shortest, made.length))
        if bool(made.length < SHORTER * self.shortest):
            made = replace(made, idle=0 * made.idle)
        return replace(made, within=made.within.clamp_max(SETTLED_EXACT)) if exact else made


def _curved(move: Tensor, fall: Tensor, precision: LowRank) -> bool:
    """Whether a remembered step is one, along which the bound is concave."""
    expected = float(move @ precision.times(move))
    return expected > 0 and float(move @ fall) > CURVED * expected
