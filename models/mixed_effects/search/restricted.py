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
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hierfl.inference.state import State

from ..likelihood import containment
from ..likelihood.quadrature.region_nodes import RegionExpansion
from ..model.equations import MixedModel
from .climb import NOWHERE, eigen, newton_step
from .criterion import Surface
from .restricted_point import Point, changes, covariance
from .separation import directions

#: in standard errors: steps along one number, the longest step, and one that is not worth while
SHORT_STEP, RADIUS, ARRIVED = 0.02, 2.0, 1e-3
#: a shorter step, in standard errors, says nothing of the penalty's bend: coefficients that are still on their way, and
#: the slope's own digits, say more; and a height that falls by less has not fallen
LEAST_STEP, LEAST_FALL = 0.25, 1e-3
#: points at most; how often a step that has lost height is halved; and how often slopes are measured
MAX_POINTS, MAX_HALVINGS, MAX_MEASURED = 60, 8, 4
#: slopes along all numbers are measured again where the search ends, or loses height, so far from where they were, in
#: standard errors
FAR_FROM_START = 0.02
#: the length of a flat direction's part among theta, or among the coefficients, from which on it is one there
PART = 0.1


@dataclass(frozen=True)
class Restricted:
    """Where the search is: in coordinates along which the likelihood ends, theta's first.

    Attributes:
        origin, basis: numbers (K,), and orthonormal directions (K, k) from there; what goes to infinity stays.
        best: coordinates of the highest point, (k,); ``height``, ``penalty``, ``gradient`` and ``curvature`` as of
            :class:`Point`.
        slope, bend: of the penalty, first and second derivatives, (t,) and (t, t).
        fresh: slopes that are being measured around the best point, (t,).
        turning: the slope of the coefficients' information I, (t, p, p).
        measured: how many numbers' slopes are measured around the best point, ().
        began, rounds: theta where they were measured last, (t,), and how often they were, ().
        next: where to look next, (k,).
        points: looked at, ().
        halvings: of the step that is tried, ().
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
    def begin(cls, at: Tensor, p: int, flat: Tensor) -> Restricted:
        """Before anything is known.

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
            at, basis, start, zero + NOWHERE, zero, at.new_zeros(k), at.new_zeros(k, k), at.new_zeros(t),
            at.new_zeros(t, t), at.new_zeros(t), at.new_zeros(t, k - t, k - t), zero, at.new_zeros(t), zero, start,
            zero, zero, zero,
        )  # fmt: skip

    @classmethod
    def read(cls, state: State) -> Restricted:
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
    def found(self) -> Tensor:
        """Numbers of the best point, (K,)."""
        return self.origin + self.basis @ self.best

    def seen(self, height: Tensor, gradient: Tensor, curvature: Tensor) -> Restricted:
        """With the log likelihood's height (), gradient (K,) and curvature (K, K) at :attr:`asked`."""
        basis = self.basis
        here = Point.of(self.next, height, basis.T @ gradient, basis.T @ curvature @ basis, self.p)
        search = replace(self, points=self.points + 1)
        if bool(self.height == NOWHERE):
            return search._end() if here is None else search._at(here)._measure(0)
        if int(self.measured) < self.t:
            return search._measured(here)
        if here is None or bool(here.height < self.height - LEAST_FALL):
            return search._halved()
        return search._stepped(here)

    def _at(self, here: Point) -> Restricted:
        return replace(
            self, best=here.at, height=here.height, penalty=here.penalty, gradient=here.gradient,
            curvature=here.curvature, halvings=0 * self.halvings,
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

    def _measured(self, here: Point | None) -> Restricted:
        number = int(self.measured)
        fresh, turning = self.fresh.clone(), self.turning.clone()
        if here is not None:
            step = here.at[: self.t] - self.best[: self.t]
            fresh[number] = (here.penalty - self.penalty - 0.5 * step @ self.bend @ step) / step[number]
            turning[number] = (here.curvature - self.curvature)[self.t :, self.t :] / step[number]
        return replace(self, fresh=fresh, turning=turning)._measure(number + 1)

    def _learned(self) -> Restricted:
        """With the bend that takes the slopes of the last place to those of this one (Powell's symmetric Broyden)."""
        moved, missed = self.best[: self.t] - self.began, self.fresh - self.slope
        along = eigen(self.highest.profile[1])[2].square() * moved
        length = along @ moved
        if not bool(length > 0):
            return self
        once = (missed[:, None] * along + along[:, None] * missed) / length
        return replace(self, bend=self.bend + once - (moved @ missed) / length.square() * along[:, None] * along)

    def _stepped(self, here: Point) -> Restricted:
        """What the penalty did beyond its slope is its bend along the step."""
        step, bend = here.at[: self.t] - self.best[: self.t], self.bend
        if self._length(here, step) > LEAST_STEP:
            along = eigen(here.profile[1] - bend)[2].square() * step
            missed = here.penalty - self.penalty - self.slope @ step - 0.5 * step @ bend @ step
            bend = bend + 2 * missed / (along @ step).square() * along[:, None] * along
        return replace(self, slope=self.slope + bend @ step, bend=bend)._at(here)._go_on()

    def _length(self, point: Point, step: Tensor) -> float:
        """Of a step (t,), in standard errors."""
        values, vectors, scale = eigen(point.profile[1] - self.bend)
        return float(((vectors.mT @ (step * scale)).square() * values.abs()).sum().sqrt())

    def _halved(self) -> Restricted:
        if self._far():
            return replace(self, halvings=0 * self.halvings)._measure(0)  # (slopes of another place misled the step)
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


def start(method: MixedModel) -> State:
    """What is broadcast before anything is known."""
    k, p = method.k, len(method.network.fixed)
    shapes = {"restricted": (k,), "restricted_covariance": (k, k), "restricted_changes": (k - p, p, p)}
    shapes |= containment.sizes(method)
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def begin(surface: Surface, state: State, memory: State) -> State:
    """With the first point: the likelihood's maximum, standard deviations above zero. See :func:`seen`."""
    at = surface.of_coordinates(surface.inside(state))
    ways, gone = directions(surface.method, state)
    search = Restricted.begin(at, len(state["beta"]), ways[:, gone] / ways[:, gone].norm(dim=0))
    memory.update(search.state())
    return {**state, "at": search.asked}


def seen(
    surface: Surface, state: State, total: State, memory: State, known: RegionExpansion | None
) -> tuple[Restricted, State]:
    """With what is found at the point, and the next one; at the end with what was estimated.

    Args:
        surface: of the search.
        state: shared values by their short names.
        total: the clients' sums.
        memory: of the server.
        known: of regions, by which the nodes were placed.
    """
    search = Restricted.read(memory)
    search = search.seen(*surface.expansion(total, search.asked, "ml", known))
    memory.update(search.state())
    state = {**state, **{name: total[name] for name in containment.sizes(surface.method)}, "at": search.asked}
    return search, {**state, **estimates(surface, search, state["curvature"])} if bool(search.done) else state


def estimates(surface: Surface, search: Restricted, curvature: Tensor) -> State:
    """What is broadcast at the end: restricted estimates; in place of the others, too, where those are asked for.

    Args:
        surface: of the search.
        search: at its end.
        curvature: of the likelihood at its maximum, (K, K).
    """
    basis, numbers = search.basis, search.found
    p = len(surface.method.network.fixed)
    of_coefficients = basis[-p:, search.t :]
    along = numbers.new_zeros(len(numbers) - p, p, p)  # (nothing along directions that have no end)
    along[: search.t] = of_coefficients @ changes(search.highest, search.bend, search.turning) @ of_coefficients.T
    found = {
        "restricted": numbers, "restricted_covariance": basis @ covariance(search.highest) @ basis.T,
        "restricted_changes": along,
    }  # fmt: skip
    if surface.method.settings.population != "reml":
        return found
    constant = 0.5 * search.p * math.log(2 * math.pi) + surface.reml_constant
    rest = torch.eye(len(numbers)).to(numbers) - basis @ basis.T
    curvature = basis @ search.curvature @ basis.T + rest @ curvature @ rest
    return {
        **found, **surface.method.parts(numbers), "curvature": curvature, "slope": basis @ search.gradient,
        "height": search.height + constant,
    }  # fmt: skip


def _others(flat: Tensor) -> Tensor:
    """Orthonormal directions (n, n - r) beside those that flat ones (n, m) have a part in."""
    vectors, values, _ = torch.linalg.svd(flat, full_matrices=True)
    return vectors[:, int((values > PART).sum()) :]
