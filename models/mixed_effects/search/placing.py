"""Placement of nodes, at which clients are asked beside the points themselves: a stage between the sums and the phases.

A phase asks at a point. This stage adds at which nodes of regions' effects, by what clients have last said of them
(:mod:`.region_nodes`); other likelihoods have none. Where a round's sums say that the nodes were in the wrong position,
the same point is asked about once more at new ones, and the phase does not see the sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from hierfl.inference.state import State

from .phases.base import SearchPhase
from .requests import EXPANSION
from .state import Search


@dataclass(frozen=True)
class Placing:
    """The nodes of a search.

    Args:
        search: where it is; memory has by what the next nodes are placed, and the last ones were.
    """

    search: Search

    def ask(self) -> None:
        """Adds to the shared values where the next nodes are."""
        values = self.search.values
        values.update(self.search.likelihood.questions(self.search.memory, values["at"], values["points"]))

    def tell(self, phase: SearchPhase, sums: State) -> bool:
        """Tells a phase the sums, unless its point has to be asked about again: whether it was sent."""
        again = phase.request is EXPANSION and self.search.likelihood.moved(
            self.search.values, sums, self.search.memory
        )
        if not again:
            phase.tell(sums)
        return not again
