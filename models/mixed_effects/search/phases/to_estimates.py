"""The climb to the estimates: the maximum of the likelihood, or of REML's criterion of a gaussian response.

Newton's method from the first values (:mod:`..climb`), one point a round, until the step to go is shorter than ``tol``.
"""

from __future__ import annotations

import torch

from hierfl.inference.state import State

from ..climb import Climb
from ..criterion import upright
from ..early_steps import early, trusted
from ..requests import EXPANSION, Phase
from .base import SearchPhase


class ToEstimates(SearchPhase):
    """Keeps the highest point as the estimates."""

    number, request = Phase.CLIMB, EXPANSION

    @property
    def climb(self) -> Climb:
        """The climb; before the first round, one from the first values."""
        search = self.search
        if "climb.best" in search.memory:
            return Climb.read(search.memory)
        return Climb.begin(search.numbers, search.surface.longest("ml"))

    def ask(self) -> State:
        """The next point."""
        return {"at": self.climb.next}

    def tell(self, sums: State) -> None:
        """Takes derivatives of the log likelihood, or of a gaussian response's quadratic."""
        search, surface, climb = self.search, self.search.surface, self.climb
        at, nodes = climb.next, search.known
        climb = climb.updated(
            *surface.expansion(sums, at, search.criterion, nodes), search.digits, trusted=trusted(search.method, climb)
        )
        if torch.equal(climb.best, at):
            values = {**search.method.parts(climb.best), "height": climb.height + search.constant}
            coefficients = surface.coefficients(search.criterion)
            search.values.update(values | search.likelihood.estimated(sums, climb.best, nodes, coefficients))
            climb = early(search.method, climb, search.values["counts"])
        search.values.update({"slope": climb.gradient, "curvature": climb.curvature, "to_go": climb.to_go})
        search.memory.update(climb.state())
        self.done = climb.arrived(search.method.settings.tol)
        if self.done:
            search.values.update(upright(search.method, search.values))
