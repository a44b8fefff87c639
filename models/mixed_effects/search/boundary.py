"""The likelihood without one standard deviation, for the test of whether that one is zero.

A standard deviation |t^T L| is zero where t^T L = 0, which is linear in L's entries. Let row p be the last with t_p not
zero. Then column p is zero, row p is -sum_i t_i L_i / t_p, and the other entries are free. The climb is Newton's in the
free numbers, one point a round, from the estimates without what t spans. Most of its rounds are those in which many
points are explored: those have room for one point with derivatives.

    T = 2 (max l - max of l where the standard deviation is zero)

Of a block of r effects, T is half chi-squared(r) and half chi-squared(r - 1) where it is zero (Self and Liang, 1987;
Stram and Lee, 1994).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hierfl.inference.state import State

from ..likelihood.quadrature.region_nodes import RegionExpansion
from ..model.covariance import Covariance
from ..model.equations import MixedModel
from .bounds import at_bounds, directions
from .climb import NOWHERE, Climb
from .criterion import Criterion, Surface

#: a statistic that is not known yet, and one that was not found: shared values are numbers
NOT_YET, NOT_FOUND = -1.0, -2.0
#: a climb ends nearer than so many standard errors to its maximum, after so many points, or where T is beyond this
NEAR, TRIES, ENOUGH = 0.1, 12, 60.0
#: the least standard deviation of the other effects to begin with, over the one that is left out
LEAST = 0.3
#: names of a server's memory begin with this
MEMORY = "boundary."


@dataclass(frozen=True)
class Face:
    """Where one standard deviation is zero.

    Attributes:
        free: the numbers (k,) as linear functions of those that are left, (k, m).
        start: the ones that are left, to begin with, (m,).
    """

    free: Tensor
    start: Tensor

    @classmethod
    def of(cls, method: MixedModel, estimates: Mapping[str, Tensor], number: int) -> Face:
        """Of a standard deviation by its number in :func:`deviations`."""
        level, k = deviations(method)[number]
        t = directions(method.groupings[level], estimates[level])[1][k]
        roots = {name: of.matrix(estimates[name]) for name, of in method.covariances.items()}
        least = LEAST * (t @ roots[level]).norm()
        free, start = [], []
        lost = torch.zeros_like(least)
        for name, size in method.sizes.items():
            value, one = estimates[name].reshape(size), torch.eye(size).to(t)
            if name in roots:
                of = method.covariances[name]
                if name == level:
                    one, value = _without(of, roots[name], t, least)
                else:
                    value = of.of_matrix(_lifted(roots[name], range(of.q), least))
                lost = lost + roots[name].square().sum() - of.matrix(one @ value).square().sum()
            free.append(one)
            start.append(value)
        if "log_noise" in method.sizes:  # (what no effect takes up is the residual's)
            at = list(method.sizes).index("log_noise")
            start[at] = 0.5 * ((2 * start[at]).exp() + lost.clamp_min(0)).log()
        return cls(torch.block_diag(*free), torch.cat(start))


def deviations(method: MixedModel) -> list[tuple[str, int]]:
    """Level and effect of each standard deviation that is learned, in the order of the table of effects."""
    return [(level, k) for level, of in method.covariances.items() if level in method.sizes for k in range(of.q)]


def tested(method: MixedModel) -> bool:
    """Whether its standard deviations are compared with zero: those are that are estimated, and have draws."""
    # restricted estimates of other responses are no maximum of the likelihood that is climbed here
    compared = method.settings.population in (("auto", "ml", "reml") if method.exact else ("auto", "ml"))
    return compared and bool(deviations(method)) and method.settings.draws > 0


def _without(covariance: Covariance, root: Tensor, t: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """All entries of L with t^T L = 0 as linear functions of the free ones, (r, m), and those to begin with, (m,).

    Args:
        covariance: of the effects.
        root: the estimate of L, (q, q).
        t: of length one, (q,).
        least: standard deviation of an effect that t has nothing of, to begin with.
    """
    seen = (t.abs() > 1e-9).nonzero().flatten().tolist()
    pivot = seen[-1]
    rest = [i for i in range(covariance.q) if i != pivot]
    where = {cell: e for e, cell in enumerate(covariance.places)}
    kept = [(cell, e) for cell, e in where.items() if pivot not in cell]
    free = root.new_zeros(covariance.entries, len(kept))
    for column, ((i, c), e) in enumerate(kept):
        free[e, column] = 1.0
        if i in seen:
            free[where[pivot, c], column] = -t[i] / t[pivot]
    left = root - t[:, None] * (t @ root)
    first = torch.zeros_like(root)
    if rest:
        sigma = (left @ left.mT)[rest][:, rest]
        few = 1e-10 * (sigma.diagonal().max() + least.square())
        at = torch.tensor(rest)
        first[at[:, None], at] = torch.linalg.cholesky(sigma + few * torch.eye(len(rest)).to(sigma))
        first = _lifted(first, [i for i in rest if i not in seen], least)
    return free, covariance.of_matrix(first)[torch.tensor([e for _, e in kept], dtype=torch.long)]


def _lifted(root: Tensor, rows: list[int] | range, least: Tensor) -> Tensor:
    """With rows that are no shorter: at zero the likelihood has no slope, whatever it is elsewhere."""
    root = root.clone()
    for i in rows:
        if root[i].norm() < least:
            root[i, i] = least
    return root


@dataclass(frozen=True)
class BoundarySearch:
    """Finds T of each standard deviation, one after the other.

    Args:
        surface: of the method.
        criterion: whose maximum the estimates are.
        longest: how far a number goes in one step at most, (k,).
        digits: to which heights at different points can be compared.
    """

    surface: Surface
    criterion: Criterion
    longest: Tensor
    digits: float

    @cached_property
    def method(self) -> MixedModel:
        """Whose population."""
        return self.surface.method

    def begin(self, state: State, memory: State) -> State:
        """With the first point to look at: state and memory are those of the search, by short names."""
        return self._on({**state, "boundary": torch.full_like(state["boundary"], NOT_YET)}, memory, 0)

    @staticmethod
    def running(state: State, memory: State) -> bool:
        """Whether a point is asked about."""
        return f"{MEMORY}number" in memory and bool((state["boundary"] == NOT_YET).any())

    def _on(self, state: State, memory: State, number: int) -> State:
        """To the next standard deviation that is not at zero."""
        boundary, bounds = state["boundary"].clone(), at_bounds(self.method, state)
        labels = [f"sd({self.method.groupings[level].labels[k]})" for level, k in deviations(self.method)]
        while number < len(labels) and bounds[labels[number]].end is not None:
            boundary[number] = 0.0
            number += 1
        memory[f"{MEMORY}number"] = torch.tensor(float(number))
        if number == len(labels):
            return {**state, "boundary": boundary}
        face = Face.of(self.method, state, number)
        reach = torch.where(face.free != 0, self.longest[:, None] / face.free.abs(), torch.inf)
        climb = Climb.begin(face.start, reach.amin(0))
        self._keep(memory, climb)
        return {**state, "boundary": boundary, "at": face.free @ climb.next}

    @staticmethod
    def _keep(memory: State, climb: Climb) -> None:
        memory.update({f"{MEMORY}{name}": value for name, value in climb.state().items()})

    def seen(self, state: State, total: State, memory: State, known: RegionExpansion | None) -> State:
        """With what is found at the point, and the next one."""
        number = int(memory[f"{MEMORY}number"])
        climb = Climb.read({k.removeprefix(MEMORY): v for k, v in memory.items() if k.startswith(MEMORY)})
        free = Face.of(self.method, state, number).free
        height, slope, bend = self.surface.expansion(total, free @ climb.next, self.criterion, known)
        climb = climb.seen(height, free.mT @ slope, free.mT @ bend @ free, self.digits)
        self._keep(memory, climb)
        top = state["height"] - (self.surface.reml_constant if self.criterion == "reml" else 0.0)
        below, near = 2 * (top - climb.height), climb.arrived(NEAR)
        least = below - climb.to_go.square()
        if not (near or bool(least > ENOUGH) or int(climb.rounds) >= TRIES):
            return {**state, "at": free @ climb.next}
        statistic = least if near or bool(least > ENOUGH) else below
        boundary = state["boundary"].clone()
        boundary[number] = NOT_FOUND if bool(climb.height == NOWHERE) else statistic.clamp_min(0)
        return self._on({**state, "boundary": boundary}, memory, number + 1)
