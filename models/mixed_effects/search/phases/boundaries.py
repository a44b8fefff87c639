"""Tests of whether standard deviations are zero: the likelihood's maximum without each of them, one after the other.

    T = 2 (max l - max of l where the standard deviation is zero)

The climb is Newton's in the numbers that are free there (:class:`..boundary.Face`), one point a round, from the
estimates without that one. Most of its points are asked about beside the many of :mod:`.explore`; what is left then
goes on by itself. Of a block of r effects, T is half chi-squared(r) and half chi-squared(r - 1) where it is zero (Self
and Liang, 1987; Stram and Lee, 1994).
"""

from __future__ import annotations

import torch

from hierfl.inference.server.explored import NO_HEIGHT
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..boundary import Face, deviations, tested
from ..bounds import at_bounds
from ..climb import Climb
from ..requests import EXPANSION, NOT_YET, Phase
from .base import SearchPhase

#: a statistic that was not found: shared values are numbers
NOT_FOUND = -2.0
#: a climb ends nearer than so many standard errors to its maximum, after so many points, or where T is beyond this
ARRIVED_STANDARD_ERRORS, MAX_POINTS, MAX_STATISTIC = 0.1, 12, 60.0
#: names of a server's memory begin with this
MEMORY = "boundary."


class Boundaries(SearchPhase):
    """Finds T of each standard deviation."""

    number, request = Phase.PROFILE, EXPANSION

    @classmethod
    def wanted(cls, method: MixedModel) -> bool:
        """See :func:`..boundary.tested`."""
        return tested(method)

    @property
    def running(self) -> bool:
        """Whether a point is asked about."""
        return f"{MEMORY}number" in self.search.memory and bool((self.search.values["boundary"] == NOT_YET).any())

    @property
    def climb(self) -> Climb:
        """The climb, in the free numbers."""
        return Climb.read({k.removeprefix(MEMORY): v for k, v in self.search.memory.items() if k.startswith(MEMORY)})

    @property
    def face(self) -> Face:
        """The face on which the standard deviation is zero."""
        return Face.for_deviation(self.search.method, self.search.values, int(self.search.memory[f"{MEMORY}number"]))

    def begin(self) -> None:
        """Begins with the first standard deviation, unless :mod:`.explore` has begun it."""
        if f"{MEMORY}number" not in self.search.memory:
            self.search.values["boundary"] = torch.full_like(self.search.values["boundary"], NOT_YET)
            self._on(0)
        self.done = not self.running

    def ask(self) -> State:
        """The next point, where there is one."""
        return {"at": self.face.free @ self.climb.next} if self.running else {}

    def tell(self, sums: State) -> None:
        """Takes derivatives of the criterion."""
        search, climb, free = self.search, self.climb, self.face.free
        criterion, nodes = search.criterion, search.known
        height, slope, bend = search.surface.expansion(sums, free @ climb.next, criterion, nodes)
        climb = climb.updated(height, free.mT @ slope, free.mT @ bend @ free, search.digits)
        self._keep(climb)
        below, near = (
            2 * (search.values["height"] - search.constant - climb.height),
            climb.arrived(ARRIVED_STANDARD_ERRORS),
        )
        least = below - climb.to_go.square()
        enough = near or bool(least > MAX_STATISTIC)
        if enough or int(climb.rounds) >= MAX_POINTS:
            number = int(search.memory[f"{MEMORY}number"])
            statistics = search.values["boundary"].clone()
            statistic = least if enough else below
            statistics[number] = NOT_FOUND if bool(climb.height == NO_HEIGHT) else statistic.clamp_min(0)
            search.values["boundary"] = statistics
            self._on(number + 1)
        self.done = not self.running

    def _on(self, number: int) -> None:
        """Goes to the next standard deviation that is not at zero."""
        search, method = self.search, self.search.method
        statistics, bounds = search.values["boundary"].clone(), at_bounds(method, search.values)
        labels = [f"sd({method.groupings[level].labels[k]})" for level, k in deviations(method)]
        while number < len(labels) and bounds[labels[number]].end is not None:
            statistics[number] = 0.0
            number += 1
        search.memory[f"{MEMORY}number"] = torch.tensor(float(number))
        search.values["boundary"] = statistics
        if number < len(labels):
            face, longest = self.face, search.surface.longest("ml")
            reach = torch.where(face.free != 0, longest[:, None] / face.free.abs(), torch.inf)
            self._keep(Climb.begin(face.start, reach.amin(0)))

    def _keep(self, climb: Climb) -> None:
        self.search.memory.update({f"{MEMORY}{name}": value for name, value in climb.state().items()})
