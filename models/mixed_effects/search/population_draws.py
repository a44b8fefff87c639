"""Draws of the population from points that are weighted by its density."""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.state import State
from hierfl.rng import key

from ..likelihood.gaussian.regions import region_draws
from ..likelihood.quadrature.region_nodes import RegionExpansion, asks_at_nodes, drawn_regions
from .criterion import Surface
from .explore import systematic
from .questions import Phase


def drawn_population(
    surface: Surface, state: State, packed: Tensor, points: Tensor, log_weights: Tensor, context: AggregationContext
) -> State:
    """Draws of the population, and the end of the search.

    Of a gaussian response coefficients are drawn given the other numbers; effects of groups of clients given all.

    Args:
    surface: of the search.
    state: the shared values as they are.
    packed: what clients have said at the points, (P, c).
    points: coordinates, (P, k).
    log_weights: of the points, (P,).
    context: of the round.
    """
    method, number = surface.method, surface.method.settings.draws
    at = systematic(log_weights, number, key(context.seed, "population"))
    draws, middle = surface.of_coordinates(points[at]), surface.of_coordinates(points[at].mean(0))
    if method.exact:
        mean, precision, _ = surface.beta(packed, "mixing", surface.of_coordinates(points))
        factor = torch.linalg.cholesky_ex(precision).L
        z = context.normal("population", mean.new_zeros(number, mean.shape[-1]))
        away = torch.linalg.solve_triangular(factor.mT[at], z[..., None], upper=True).squeeze(-1)
        numbers, beta = draws, mean[at] + away
        draws, middle = torch.cat([draws, beta], -1), torch.cat([middle, mean[at].mean(0)])
        if method.regions:
            w = region_draws(
                method, packed[at], numbers, beta, lambda like: context.normal("regions", like)
            )  # fmt: skip
            draws, middle = torch.cat([draws, w.flatten(1)], -1), torch.cat([middle, w.mean(0).flatten()])
    if asks_at_nodes(method):
        known = RegionExpansion.read(method, context.rule_state)
        w = drawn_regions(
            method, packed[at], known, draws, lambda like: context.normal("regions", like)
        )  # fmt: skip
        draws, middle = torch.cat([draws, w.flatten(1)], -1), torch.cat([middle, w.mean(0).flatten()])
    if method.settings.population == "bayes":
        state = {**state, **method.parts(middle)}
    return {**state, "draws": draws, "phase": torch.tensor(float(Phase.DONE))}
