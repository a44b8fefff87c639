"""How the population is found from sums: phases in order, each of which asks clients and is given their sum.

    to_estimates  ->  restrict  ->  profile_bounds  ->  to_mode  ->  explore  ->  boundaries

In each round of a climb clients send what their log marginal likelihood is around one point: height, slope and
curvature (of a gaussian response the coefficients of a quadratic in beta, with two derivatives). In each round of the
exploration they send it at many points. The server keeps the highest point as the estimate, and at the end draws of the
population.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State

from .phases.base import SearchPhase
from .phases.boundaries import Boundaries
from .phases.explore import Explore
from .phases.profile_bounds import ProfileBounds
from .phases.restrict import Restrict
from .phases.to_estimates import ToEstimates
from .phases.to_mode import ToMode
from .placing import Placing
from .questions import Likelihoods
from .requests import Phase
from .shared_values import first_phase, initial
from .state import Search

#: in their order; a method has those that are wanted
PHASES: tuple[type[SearchPhase], ...] = (ToEstimates, Restrict, ProfileBounds, ToMode, Explore, Boundaries)


@dataclass(frozen=True)
class PopulationSearch(Likelihoods):
    """Climbs to the estimates of the population, and explores what is known of it, by sums of log likelihoods.

    Args:
        method: whose population.
    """

    @property
    def moving(self) -> list[str]:
        """The estimates, not where it is looked at next."""
        above = {level.effects: 0 for level in self.method.above}
        return [f"effects.{name}" for name in {**self.method.sizes, "beta": 0, **above}]

    def initial(self) -> State:
        """What is broadcast beside the estimates, to begin with."""
        return initial(self.method)

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """What the next round asks; a round in which a client is missing is skipped: its sums are of another table.

        The population's few numbers are computed by the host.
        """
        if int(context.reported) < context.num_clients:
            return skipped(old)
        device, memory = context.reported.device, context.rule_state
        for kept in (total, memory):
            kept.update({k: v.cpu() for k, v in kept.items()})
        values = {k.removeprefix("effects."): v.cpu() for k, v in old.items()}
        search = Search(self.method, values, memory, context)
        self._round(search, total)
        Placing(search).ask()
        memory.update({k: v.to(device) for k, v in memory.items()})
        return {name: values[name.removeprefix("effects.")].to(value) for name, value in old.items()}

    def _round(self, search: Search, sums: State) -> None:
        """Tells the running phase, and enters those that follow one at its end."""
        values = search.values
        before, values["counts"] = values["counts"], sums["counts"]
        if bool(before.any()) and not torch.equal(before, sums["counts"]):
            # others take part than before: heights of their sums cannot be compared, and the search begins again
            search.memory.clear()
            search.enter(first_phase(self.method))
            values["at"] = search.numbers
            return
        phase = running(search)
        if phase is None or not Placing(search).tell(phase, sums):
            return
        for after in PHASES[PHASES.index(type(phase)) + 1 :]:
            if phase.done and after.wanted(self.method):
                phase = after(search)
                phase.begin()
                search.enter(phase.number)
        if phase.done:
            search.enter(Phase.DONE)
        else:
            values.update(phase.ask())


def skipped(old: State) -> State:
    """The next round asks the same; shared values that are no numbers tell the server that this one has not counted."""
    return {**old, "effects.to_go": old["effects.to_go"] * torch.nan}


def running(search: Search) -> SearchPhase | None:
    """The phase that has asked; None at the end."""
    if search.phase == Phase.DONE:
        return None
    if search.phase == Boundaries.number and Boundaries(search).running:
        return Boundaries(search)
    return {phase.number: phase for phase in PHASES if phase is not Boundaries}[search.phase](search)
