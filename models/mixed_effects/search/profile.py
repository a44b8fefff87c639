"""Profile-likelihood intervals: an effect's smallest and largest value where the likelihood is not too low.

    min, max of psi(theta)    where    l(theta) >= l* = max l - c / 2,    c a quantile of chi-squared with 1 df

At a bound the gradients of l and psi are parallel. One point a round: with l's gradient g and curvature C there, and
psi's gradient a, parabolas have their bound at the step

    D^-1 (g + r a),    D = C - r P,    r such that the parabola is l* there

(Venzon and Moolgavkar, Applied Statistics 1988, have psi one of theta's numbers, and its curvature P zero).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from hierfl.inference.state import State

from ..model.arithmetic import IMPOSSIBLE
from ..model.effects import effects_of
from ..model.equations import MixedModel
from .climb import eigen
from .criterion import Surface

#: points of one bound, at most; how near its height has to be, and how short the step that is left, in standard errors
MAX_POINTS_PER_BOUND, HEIGHT_TOLERANCE, STEP_TOLERANCE = 40, 1e-5, 1e-3
#: a point whose height is so much below l* is gone back from
TOO_LOW = 3.0
#: a standard deviation below this share of the one that the search began at is zero
ZERO_SD_SHARE = 1e-3
#: the value of a bound that was not found, and for one without end: shared values are numbers
UNKNOWN, INFINITE = -1e300, 1e300
#: how much lower, in log sd, a search may begin whose first point is too low
DEEP = 8.0
#: a correlation so near to one is one
CORRELATION_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Profile:
    """The state of a search for bounds.

    Attributes:
        best: coordinates of the maximum, (k,), standard deviations of zero by very small ones.
        start: the same, with standard deviations that are well above zero: where each search begins, (k,).
        least: l*, ().
        longest: how far a coordinate goes in one step at most, (k,).
        good: the last point that was not too low, (k,).
        next: where to look next, (k,).
        number: how many bounds are done, ().
        tries: points of this one, ().
        bounds: lower and upper, of each effect, (m, 2).
    """

    best: Tensor
    start: Tensor
    least: Tensor
    longest: Tensor
    good: Tensor
    next: Tensor
    number: Tensor
    tries: Tensor
    bounds: Tensor

    @classmethod
    def begin(
        cls, at: Tensor, start: Tensor, height: Tensor, level: float, longest: Tensor, effects: int
    ) -> Profile:  # fmt: skip
        """Begins at the maximum, ``at`` in coordinates, or at ``start``, where no standard deviation is zero."""
        nothing, best = at.new_zeros(()), at.maximum(start - DEEP).minimum(at.maximum(start))
        least = height - 0.5 * float(stats.chi2.ppf(level, 1))
        return cls(best, start, least, longest, best, start, nothing, nothing, at.new_full((effects, 2), UNKNOWN))

    @classmethod
    def read(cls, state: State) -> Profile:
        """What :meth:`state` has written."""
        state = {"profile.start": state["profile.best"], **state}  # an earlier version had one for both
        return cls(**{f.name: state[f"profile.{f.name}"] for f in fields(cls)})

    def state(self) -> State:
        """All of it by name."""
        return {f"profile.{f.name}": getattr(self, f.name) for f in fields(self)}

    @property
    def done(self) -> bool:
        """Whether all bounds are searched."""
        return int(self.number) >= self.bounds.numel()

    def updated(self, method: MixedModel, height: Tensor, gradient: Tensor, curvature: Tensor) -> Profile:
        """Updates the state with height and derivatives at :attr:`next`."""
        effect, upper = divmod(int(self.number), 2)
        finite = bool(height > 0.5 * IMPOSSIBLE) and bool(gradient.isfinite().all() & curvature.isfinite().all())
        if not finite or bool(height < self.least - TOO_LOW):
            if int(self.tries) >= MAX_POINTS_PER_BOUND:
                return self._ended(effect, upper, UNKNOWN)
            return self._on(self.good, 0.5 * (self.good + self.next))
        value, slope, bend = _with_derivatives(method, effect, self.next)
        zero = profiled(method)[effect].startswith("sd(") and value < ZERO_SD_SHARE * _value(method, effect, self.start)
        if not bool(slope.abs().any()):  # a value that is not learned has no slope
            return self._ended(effect, upper, value)
        if zero and not upper:
            return self._ended(effect, upper, 0.0)
        if bool(height >= self.least) and (end := _end(method, effect, value)) is not None and (end > value) == upper:
            return self._ended(effect, upper, end)
        side = 1.0 if upper else -1.0
        step = self._step(height, gradient, curvature, side * slope, side * bend)
        values, vectors, scale = eigen(curvature)
        length = float(((vectors.mT @ (step * scale)).square() * values.abs()).sum().sqrt())
        if abs(float(height - self.least)) < HEIGHT_TOLERANCE and length < STEP_TOLERANCE:
            return self._ended(effect, upper, value)
        if int(self.tries) >= MAX_POINTS_PER_BOUND:
            return self._ended(effect, upper, UNKNOWN)
        step = step / (step.abs() / self.longest).max().clamp_min(1.0)
        return self._on(self.next, self.next + step)

    def _step(self, height: Tensor, gradient: Tensor, curvature: Tensor, slope: Tensor, bend: Tensor) -> Tensor:
        """The step to the bound of the parabolas."""
        values, vectors, scale = eigen(curvature)
        # A parabola that opens upwards has no bound. Its curvature is taken with the other sign.
        down = (vectors * values.abs()) @ vectors.mT * scale * scale[:, None]
        reach, step = torch.zeros_like(height), torch.zeros_like(gradient)
        for _ in range(3):
            values, vectors, scale = eigen(curvature - reach * bend)
            inverse = vectors / values.abs().clamp_min(1e-8) @ vectors.mT / scale / scale[:, None]
            still, direction = inverse @ gradient, inverse @ slope
            # height + gradient . step - step . down . step / 2 is l* at step = still + reach along
            a = 0.5 * direction @ down @ direction
            b = direction @ (down @ still - gradient)
            c = 0.5 * still @ down @ still - gradient @ still + self.least - height
            root = (b.square() - 4 * a * c).clamp_min(0).sqrt()
            reach = ((root - b) / (2 * a)).clamp_min(0) if bool(a > 0) else reach
            step = still + reach * direction
        return step

    def _on(self, good: Tensor, after: Tensor) -> Profile:
        return replace(self, good=good, next=after, tries=self.tries + 1)

    def _ended(self, effect: int, upper: int, value: float) -> Profile:
        bounds = self.bounds.clone()
        bounds[effect, upper] = min(max(value, UNKNOWN), INFINITE)
        return replace(
            self, good=self.best, next=self.start, number=self.number + 1, tries=0 * self.tries, bounds=bounds
        )  # fmt: skip


def profiled(method: MixedModel) -> list[str]:
    """Names of the effects that have such intervals: all but coefficients."""
    numbers = torch.zeros(method.k, dtype=torch.float64)
    return [name for name in _effects(method, numbers)[0] if name not in method.network.fixed]


def _effects(method: MixedModel, coordinates: Tensor) -> tuple[list[str], Tensor]:
    """Effects at coordinates (k,); a gaussian response has coefficients of zero, on which no others depend."""
    parts = method.parts(Surface(method).of_coordinates(coordinates))
    zero = torch.zeros(len(method.network.fixed), dtype=torch.float64)
    parts = {"beta": zero, **parts}
    parts = {**method.first_roots(), **parts}
    labels, values = effects_of(method, {k: v[None] for k, v in parts.items()})
    return labels, values[0]


def _value(method: MixedModel, effect: int, at: Tensor) -> float:
    """An effect's value."""
    labels, values = _effects(method, at)
    return float(values[labels.index(profiled(method)[effect])])


def _end(method: MixedModel, effect: int, value: float) -> float | None:
    """The bound at which an effect is, perhaps an infinite one; None for others."""
    name, family = profiled(method)[effect], method.response_family
    if name.startswith("corr(") and abs(value) > 1 - CORRELATION_TOLERANCE:
        return float(np.copysign(1.0, value))
    if name.startswith(("sd(", "corr(")) or not family.at_bound(name, value):
        return None
    return family.end(name, value)


def _with_derivatives(method: MixedModel, effect: int, at: Tensor) -> tuple[float, Tensor, Tensor]:
    """An effect's value, and the gradient (k,) and second derivatives (k, k) of a growing function of it that is nearly
    straight.
    """
    name = profiled(method)[effect]

    def straight(where: Tensor) -> Tensor:
        labels, values = _effects(method, where)
        value = values[labels.index(name)]
        return value.log() if name.startswith("sd(") else value.asinh()

    slope = torch.autograd.functional.jacobian(straight, at)
    return _value(method, effect, at), slope, torch.autograd.functional.hessian(straight, at)
