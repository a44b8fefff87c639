"""Many points of the density p(theta | all data) around its mode, many a round; at the end draws of the population.

Rounds end once the weighted points are worth :data:`MIN_EFFECTIVE_POINTS` independent draws; see
:mod:`hierfl.inference.server.explored`. Those rounds have room for one point with derivatives, too:
:class:`.boundaries.Boundaries` has it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.inference.server.explored import NO_HEIGHT, Explored
from hierfl.inference.state import State
from hierfl.rng import key

from ...model.equations import MixedModel
from ..climb import Climb, spread
from ..narrow import too_narrow
from ..population_draws import draw_population
from ..requests import HEIGHTS, Phase, between
from .base import SearchPhase
from .boundaries import Boundaries

#: points in all, at most; and how many independent draws they shall be worth
MOST_POINTS, MIN_EFFECTIVE_POINTS = 4096, 500
#: a server's memory has each round's sums by this name and the round's number
PACKED = "packed."


class Explore(SearchPhase):
    """Explores the density at many points, and draws; of methods with draws."""

    number, request = Phase.EXPLORE, HEIGHTS

    @classmethod
    def wanted(cls, method: MixedModel) -> bool:
        """Whether the settings ask for draws."""
        return bool(method.settings.draws)

    @property
    def light(self) -> int:
        """How many of the numbers are coefficients."""
        return self.search.method.sizes.get("beta", 0)

    @property
    def seed(self) -> int:
        """The seed of the points of the next round."""
        return key(self.search.context.seed, self.search.context.round)

    def begin(self) -> None:
        """Begins around the mode; where nothing is searched there is one point, and draws at once."""
        search, method = self.search, self.search.method
        if not method.k:
            cross = search.values["cross"]
            draw_population(search, cross[None], cross.new_zeros(1, 0), cross.new_zeros(1))
            self.done = True
            return
        mode, points_of_round = Climb.read(search.memory), len(search.values["points"])
        explored = Explored.begin(method.k, points_of_round, -(-MOST_POINTS // points_of_round), mode.best)
        explored = explored.drawn(mode.best, spread(mode.curvature), self.light, self.seed)
        search.memory.update(explored.state())
        if Boundaries.wanted(method):
            Boundaries(search).begin()

    def ask(self) -> State:
        """The next points, and beside them the one of a test."""
        explored = Explored.read(self.search.memory)
        beside = Boundaries(self.search).ask() if Boundaries.wanted(self.search.method) else {}
        return {**beside, "points": self._points(explored)[0]}

    def tell(self, sums: State) -> None:
        """Takes heights at the points."""
        search, memory, many = self.search, self.search.memory, sums["many"]
        explored = Explored.read(memory)
        if between(search.method, search.shared):
            Boundaries(search).tell(sums)
        if search.likelihood.keeps_points:
            memory[f"{PACKED}{explored.done:04d}"] = many
        nodes, coefficients = search.likelihood.known(memory, before=False), search.surface.coefficients("mixing")
        numbers, narrow = self._points(explored)
        heights = search.likelihood.heights(many, numbers, nodes, coefficients)
        heights = torch.where(narrow, NO_HEIGHT, heights)
        explored = explored.with_heights(heights + search.surface.log_prior(explored.asked))
        worth = explored.effective(self.light)
        self.done = worth >= MIN_EFFECTIVE_POINTS or explored.done == len(explored.centres)
        if self.done:
            self._draw(explored, worth)
        else:
            explored = explored.drawn(*explored.moments(self.light), self.light, self.seed)
        memory.update(explored.state())

    def _points(self, explored: Explored) -> tuple[Tensor, Tensor]:
        """What is asked about, (M, k), and which of them represent points that are not, (M,)."""
        surface = self.search.surface
        points = surface.of_coordinates(explored.asked)
        narrow = too_narrow(self.search.method, points)
        centre = surface.of_coordinates(explored.centres[explored.done - 1])
        return torch.where(narrow[:, None], centre, points), narrow

    def _draw(self, explored: Explored, worth: float) -> None:
        logs = explored.log_weights(self.light)
        memory = self.search.memory
        kept = [memory[name] for name in sorted(memory) if name.startswith(PACKED)]
        packed = torch.cat(kept) if kept else logs
        self.search.values["worth"] = logs.new_tensor(worth)
        draw_population(self.search, packed, explored.points[: len(logs)], logs)
