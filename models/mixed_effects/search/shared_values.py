"""Shared values of a search beside the estimates, as they are broadcast before anything is known.

    phase                        what a round is about                         :class:`.requests.Phase`
    at, points                   where clients are asked, (k,) and (M, k)      :mod:`.requests`
    nodes, many_nodes            of regions, (R, K, q) and (M, R, K, q)        :mod:`.placing`
    height, slope, curvature     at the estimates, (), (k,) and (k, k)         :mod:`.phases.to_estimates`
    to_go                        Newton's step there, in standard errors, ()
    cross, cross_1, cross_2      sums at the estimates, of a gaussian response
    restricted, ...              restricted estimates of other responses       :mod:`.phases.restrict`
    profile                      bounds of intervals, (m, 2)                   :mod:`.phases.profile_bounds`
    boundary                     statistics of standard deviations, (r,)       :mod:`.phases.boundaries`
    draws, worth                 of the population, (D, m) and ()              :mod:`.phases.explore`
    counts                       clients, rows, and groups inside, (2,) or (3,)

Those that a method does not need are left out.
"""

from __future__ import annotations

import torch

from hierfl.inference.state import State

from ..likelihood import containment
from ..model.equations import MixedModel
from .boundary import deviations, tested
from .climb import INFINITE_LENGTH
from .profile import UNKNOWN, profiled
from .requests import COUNTS, NOT_YET, Phase, most_points


def initial(method: MixedModel) -> State:
    """All of them, {"effects.NAME": value}."""
    k, s = method.k, method.settings
    start: State = {
        "phase": torch.tensor(float(first_phase(method))), "at": torch.zeros(k),
        "points": torch.zeros(most_points(method), k), "draws": torch.zeros(s.draws, drawn(method)),
        "height": torch.tensor(0.0), "slope": torch.zeros(k), "curvature": torch.zeros(k, k),
        "to_go": torch.tensor(INFINITE_LENGTH), "worth": torch.tensor(0.0),
        "counts": torch.zeros(COUNTS.reply(method)["counts"]),
    }  # fmt: skip
    start |= method.likelihood.questions({}, start["at"].double(), start["points"].double())
    if s.profile:
        start["profile"] = torch.full((len(profiled(method)), 2), UNKNOWN, dtype=torch.float64)
    if method.restricted:
        p = len(method.network.fixed)
        shapes = {"restricted": (k,), "restricted_covariance": (k, k), "restricted_changes": (k - p, p, p)}
        start |= {name: torch.zeros(shape) for name, shape in {**shapes, **containment.sizes(method)}.items()}
    if tested(method):
        start["boundary"] = torch.full((len(deviations(method)),), NOT_YET)
    start |= method.likelihood.kept()
    return {f"effects.{name}": value.double() for name, value in start.items()}


def first_phase(method: MixedModel) -> Phase:
    """A posterior has no estimates to climb to."""
    return Phase.MODE if method.settings.population == "bayes" and method.k else Phase.CLIMB


def drawn(method: MixedModel) -> int:
    """Numbers of a draw of the population: coefficients too, and effects of groups of clients, known or not."""
    return method.parameters + sum(level.size * level.q for level in method.above)
