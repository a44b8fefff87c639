"""The climb to the mode of what clients' posteriors are mixed over, in coordinates; it only says where to explore."""

from __future__ import annotations

from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..climb import Climb
from ..requests import EXPANSION, Phase
from .base import SearchPhase

#: rounds and tolerance of the climb
MODE_ROUNDS, MODE_TOLERANCE = 40, 0.01


class ToMode(SearchPhase):
    """The first phase of a posterior, and of others that have draws one after the estimates."""

    number, request = Phase.MODE, EXPANSION

    @classmethod
    def wanted(cls, method: MixedModel) -> bool:
        """Whether the settings ask for draws, and something is searched."""
        return bool(method.settings.draws and method.k)

    @property
    def climb(self) -> Climb:
        """The climb; of a posterior before the first round, one from the first values."""
        search, surface = self.search, self.search.surface
        if "climb.best" in search.memory:
            return Climb.read(search.memory)
        return Climb.begin(surface.coordinates(search.numbers), surface.longest("mixing"))

    def begin(self) -> None:
        """Begins at the estimates, standard deviations above zero."""
        search, surface = self.search, self.search.surface
        search.memory.update(Climb.begin(surface.inside(search.values), surface.longest("mixing")).state())

    def ask(self) -> State:
        """The next point."""
        return {"at": self.search.surface.of_coordinates(self.climb.next)}

    def tell(self, sums: State) -> None:
        """Takes derivatives of the log density."""
        search, climb = self.search, self.climb
        expansion = search.surface.expansion(sums, climb.next, "mixing", search.known)
        climb = climb.updated(*expansion, search.digits)
        search.memory.update(climb.state())
        self.done = climb.arrived(MODE_TOLERANCE) or int(climb.rounds) >= MODE_ROUNDS
