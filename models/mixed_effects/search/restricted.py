"""Restricted estimates of other responses than gaussian: the spread without what maximum likelihood takes from it.

Maximum likelihood's standard deviations between few clients are too small, since the coefficients are taken for known.
With theta the population's numbers but for the coefficients, and beta(theta) the best coefficients there,

    l_R(theta) = l(theta, beta(theta)) - log |I(theta)| / 2,    I = -d^2 l / d beta^2 at beta(theta)

is the likelihood with the coefficients integrated out, by Laplace's approximation (glmmTMB's REML; of a gaussian
response it is exact, and lme4's). Clients send height, gradient and curvature around one point a round. The slope of
log |I| is known from its values at neighbouring points, a short step along each number of theta, and its bend from each
step that is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hierfl.inference.server.explored import NO_HEIGHT

from .climb import eigen, newton_step
from .restricted_point import Point
from .restricted_state import RestrictedState

#: in standard errors: steps along one number, the longest step, and one that is not worth while
SHORT_STEP, RADIUS, ARRIVED = 0.02, 2.0, 1e-3
#: shortest step, in standard errors, from which the penalty's second derivative is measured: over a shorter one the
#: coefficients' own moves and rounding are larger. And the least fall of a height that counts as one.
LEAST_STEP, LEAST_FALL = 0.25, 1e-3
#: points at most; how often a step that has lost height is halved; and how often slopes are measured
MAX_POINTS, MAX_HALVINGS, MAX_MEASURED = 60, 8, 4
#: slopes along all numbers are measured again where the search ends, or loses height, so far from where they were, in
#: standard errors
FAR_FROM_START = 0.02


@dataclass(frozen=True)
class Restricted(RestrictedState):
    """The search's steps: short ones along each number, which measure the penalty's slope, and Newton's."""

    def updated(self, height: Tensor, gradient: Tensor, curvature: Tensor) -> Restricted:
        """Adds the log likelihood's height (), gradient (K,) and curvature (K, K) at :attr:`asked`."""
        basis = self.basis
        point = Point.from_derivatives(self.next, height, basis.T @ gradient, basis.T @ curvature @ basis, self.p)
        search = replace(self, points=self.points + 1)
        if bool(self.height == NO_HEIGHT):
            return search._end() if point is None else search._at(point)._measure(0)
        if int(self.measured) < self.t:
            return search._measured(point)
        if point is None or bool(point.height < self.height - LEAST_FALL):
            return search._halved()
        return search._stepped(point)

    def _at(self, point: Point) -> Restricted:
        return replace(
            self, best=point.at, height=point.height, penalty=point.penalty, gradient=point.gradient,
            curvature=point.curvature, halvings=0 * self.halvings,
        )  # fmt: skip

    def _measure(self, number: int) -> Restricted:
        """Next a short step along one number of theta; the search's next step where all are known."""
        if number >= self.t:
            search = self._learned() if int(self.rounds) > 1 else self
            done = self.measured.new_tensor(float(number))
            return replace(search, slope=self.fresh, began=self.best[: self.t], measured=done)._go_on()
        point = self.highest
        step = torch.zeros_like(self.slope)
        step[number] = SHORT_STEP / eigen(point.profile[1] - self.bend)[2][number]
        search = replace(self, measured=self.measured.new_tensor(float(number)), next=point.moved(step))
        return replace(search, rounds=self.rounds + 1.0, fresh=0 * self.fresh) if number == 0 else search

    def _measured(self, point: Point | None) -> Restricted:
        number = int(self.measured)
        fresh, turning = self.fresh.clone(), self.turning.clone()
        if point is not None:
            step = point.at[: self.t] - self.best[: self.t]
            fresh[number] = (point.penalty - self.penalty - 0.5 * step @ self.bend @ step) / step[number]
            turning[number] = (point.curvature - self.curvature)[self.t :, self.t :] / step[number]
        return replace(self, fresh=fresh, turning=turning)._measure(number + 1)

    def _learned(self) -> Restricted:
        """The search with the bend that takes the last position's slopes to this one's (Powell's symmetric Broyden)."""
        moved, missed = self.best[: self.t] - self.began, self.fresh - self.slope
        direction = eigen(self.highest.profile[1])[2].square() * moved
        length = direction @ moved
        if not bool(length > 0):
            return self
        once = (missed[:, None] * direction + direction[:, None] * missed) / length
        return replace(
            self, bend=self.bend + once - (moved @ missed) / length.square() * direction[:, None] * direction
        )

    def _stepped(self, point: Point) -> Restricted:
        """What the penalty did beyond its slope is its bend along the step."""
        step, bend = point.at[: self.t] - self.best[: self.t], self.bend
        if self._length(point, step) > LEAST_STEP:
            direction = eigen(point.profile[1] - bend)[2].square() * step
            missed = point.penalty - self.penalty - self.slope @ step - 0.5 * step @ bend @ step
            bend = bend + 2 * missed / (direction @ step).square() * direction[:, None] * direction
        return replace(self, slope=self.slope + bend @ step, bend=bend)._at(point)._go_on()

    def _length(self, point: Point, step: Tensor) -> float:
        """The length of a step (t,), in standard errors."""
        values, vectors, scale = eigen(point.profile[1] - self.bend)
        return float(((vectors.mT @ (step * scale)).square() * values.abs()).sum().sqrt())

    def _halved(self) -> Restricted:
        if self._far():
            return replace(self, halvings=0 * self.halvings)._measure(0)  # slopes of another place misled the step
        if int(self.halvings) >= MAX_HALVINGS or int(self.points) >= MAX_POINTS:
            return self._end()
        return replace(self, next=0.5 * (self.best + self.next), halvings=self.halvings + 1)

    def _go_on(self) -> Restricted:
        """Newton's step, or the end."""
        point = self.highest
        gradient, curvature = point.profile
        step, length = newton_step(gradient + self.slope, curvature - self.bend, gradient.new_tensor(RADIUS))
        rest = torch.linalg.solve(self.curvature[self.t :, self.t :], self.gradient[self.t :])
        off = math.sqrt(max(0.0, float(self.gradient[self.t :] @ rest)))
        if int(self.points) >= MAX_POINTS:
            return self._end()
        if float(length) < ARRIVED and off < ARRIVED:
            return self._measure(0) if self._far() else self._end()
        return replace(self, next=point.moved(step))

    def _far(self) -> bool:
        """Whether slopes are to be measured again: the search is not where they were."""
        moved = self._length(self.highest, self.best[: self.t] - self.began)
        return moved > FAR_FROM_START and int(self.rounds) < MAX_MEASURED

    def _end(self) -> Restricted:
        return replace(self, done=torch.ones_like(self.done))
