"""What a client of another response keeps of its effects: the joint mode and curvature, and draws of the normal there.

Draws are by Laplace's approximation, as the likelihood is: a chain would reject most proposals of hundreds of numbers.
"""

from __future__ import annotations

import pyro
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..moments import cholesky
from .arrow import Arrow
from .kept import EXACT, covariances_of, mixed, normals_of, of_levels, precision_root
from .layout import Layout
from .packed import NUMBERS_PER_PASS
from .problem import JointProblem


def conditional(method: MixedModel, chunk: ClientChunk, shared: State) -> State:
    """Effects at the mode, with the curvature's covariances, {name: (S, 1, *shape)}."""
    layout, parts = Layout.for_method(method), list[State]()
    for part in parts_of(chunk):
        with pyro.validation_enabled(False):
            problem = JointProblem.of_levels(method, part.batch(), shared)
            mode, factors = problem.mode(part.values["u_mode"].squeeze(1))
        arrow, values = Arrow(*(factor[None] for factor in factors)), {k: v[None] for k, v in shared.items()}
        mean, covariance = of_levels(layout, _sides(layout, mode[None]), values), covariances_of(layout, arrow, values)
        values_of = {f"{name}_mean": value[0] for name, value in mean.items()}
        values_of |= {f"{name}_root": cholesky(value[0]) for name, value in covariance.items()}
        parts.append({**values_of, "u_mode": mode})
    return {k: torch.cat([part[k] for part in parts]).unsqueeze(1) for k in parts[0]}


def marginal(method: MixedModel, batch: Batch, shared: State, start: Tensor) -> tuple[Tensor, Tensor]:
    """Modes u (S, q) of the clients themselves, and F (S, q, q) of their marginal precision."""
    with pyro.validation_enabled(False):
        mode, factors = JointProblem.of_levels(method, batch, shared).mode(start)
    return mode[..., : method.covariance.q], precision_root(method, factors[2])


def joint(method: MixedModel, chunk: ClientChunk, draws: State, phase: object) -> State:
    """Effects at draws of the population {name: (D, *shape)}; moments are the mixture's own."""
    layout, number = Layout.for_method(method), len(draws["beta"])
    states = list[State]()
    for part in parts_of(chunk):
        batch, z = part.batch(), normals_of(layout, part, phase, number)
        numbers_each = len(part.clients) * max(layout.numbers, batch.width)
        size = max(1, NUMBERS_PER_PASS // (4 * numbers_each))
        means, covariances, drawn = list[dict[str, Tensor]](), list[dict[str, Tensor]](), list[dict[str, Tensor]]()
        for first in range(0, number, size):
            some = {k: v[first : first + size] for k, v in draws.items()}
            with pyro.validation_enabled(False):
                problem = JointProblem.of_levels(method, batch, {k: v[:, None, None] for k, v in some.items()})
                mode, factors = problem.mode(part.values["u_mode"].squeeze(1))
            arrow = Arrow(*factors)
            at, moved = _sides(layout, mode), arrow.back(*_sides(layout, z[first : first + size]))
            means.append(of_levels(layout, at, some))
            if layout.numbers <= EXACT:
                covariances.append(covariances_of(layout, arrow, some))
            drawn.append(of_levels(layout, (at[0] + moved[0], at[1] + moved[1]), some))
        states.append(mixed(means, covariances, drawn))
    return {k: torch.cat([state[k] for state in states]) for k in states[0]}


def _sides(layout: Layout, u: Tensor) -> tuple[Tensor, Tensor]:
    """Right sides (..., g, q, 1) and (..., R, 1) of the equations."""
    first, rest = layout.split(u)
    return first[..., None], rest[..., None]


def parts_of(chunk: ClientChunk) -> list[ClientChunk]:
    """Rows that are padded little."""
    return [chunk.part(first, last) for first, last in buckets(chunk.sizes)]
