"""Draws of the population from points that are weighted by its density."""

from __future__ import annotations

from torch import Tensor

from hierfl.inference.server.explored import systematic
from hierfl.rng import key

from ..likelihood.protocol import Drawn
from .state import Search


def draw_population(search: Search, many: Tensor, points: Tensor, log_weights: Tensor) -> None:
    """Writes draws of the population into the shared values; of a posterior its mean instead of estimates, too.

    What follows from the searched numbers is drawn given them: see :meth:`.protocol.Likelihood.drawn`.

    Args:
        search: whose.
        many: what clients have said at the points, (P, c).
        points: coordinates, (P, k).
        log_weights: of the points, (P,).
    """
    method, surface, context = search.method, search.surface, search.context
    at = systematic(log_weights, method.settings.draws, key(context.seed, "population"))
    alone = Drawn(surface.of_coordinates(points[at]), surface.of_coordinates(points[at].mean(0)))
    nodes, coefficients = search.likelihood.known(search.memory, before=False), surface.coefficients("mixing")
    numbers = surface.of_coordinates(points)
    draws, middle = search.likelihood.drawn(many, numbers, at, alone, nodes, coefficients, context.normal)
    if method.settings.population == "bayes":
        search.values.update(method.parts(middle))
    search.values["draws"] = draws
