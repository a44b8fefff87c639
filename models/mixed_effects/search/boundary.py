"""The likelihood without one standard deviation, for the test of whether that one is zero.

A standard deviation |t^T L| is zero where t^T L = 0, which is linear in L's entries. Let row p be the last with t_p not
zero. Then column p is zero, row p is -sum_i t_i L_i / t_p, and the other entries are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.covariance import Covariance
from ..model.equations import MixedModel
from .bounds import directions
from .state import first_criterion

#: the least standard deviation of the other effects to begin with, over the one that is left out
MIN_START_RATIO = 0.3


@dataclass(frozen=True)
class Face:
    """The face of the parameter space on which one standard deviation is zero.

    Attributes:
        free: the numbers (k,) as linear functions of those that are left, (k, m).
        start: the ones that are left, to begin with, (m,).
    """

    free: Tensor
    start: Tensor

    @classmethod
    def for_deviation(cls, method: MixedModel, estimates: Mapping[str, Tensor], number: int) -> Face:
        """Returns the face where a standard deviation is zero, by its number in :func:`deviations`."""
        level, k = deviations(method)[number]
        t = directions(method.groupings[level], estimates[level])[1][k]
        roots = {name: covariance.matrix(estimates[name]) for name, covariance in method.covariances.items()}
        least = MIN_START_RATIO * (t @ roots[level]).norm()
        free, start = [], []
        lost = torch.zeros_like(least)
        for name, size in method.sizes.items():
            value, identity = estimates[name].reshape(size), torch.eye(size).to(t)
            if name in roots:
                covariance = method.covariances[name]
                if name == level:
                    identity, value = _without(covariance, roots[name], t, least)
                else:
                    value = covariance.of_matrix(_lifted(roots[name], range(covariance.q), least))
                lost = lost + roots[name].square().sum() - covariance.matrix(identity @ value).square().sum()
            free.append(identity)
            start.append(value)
        if "log_noise" in method.single:  # what no effect takes up is the residual's
            at = list(method.sizes).index("log_noise")
            start[at] = 0.5 * ((2 * start[at]).exp() + lost.clamp_min(0)).log()
        return cls(torch.block_diag(*free), torch.cat(start))


def deviations(method: MixedModel) -> list[tuple[str, int]]:
    """Level and effect of each standard deviation that is learned, in the order of the table of effects."""
    return [
        (level, k)
        for level, covariance in method.covariances.items()
        if level in method.sizes
        for k in range(covariance.q)
    ]


def tested(method: MixedModel) -> bool:
    """Whether its standard deviations are compared with zero: those are that are estimated, and have draws."""
    # restricted estimates of a response that is not gaussian do not maximise the likelihood that is climbed here
    compared = method.settings.population in ("auto", "ml", first_criterion(method))
    return compared and bool(deviations(method)) and method.settings.draws > 0


def _without(covariance: Covariance, root: Tensor, t: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """All entries of L with t^T L = 0 as linear functions of the free ones, (r, m), and those to begin with, (m,).

    Args:
        covariance: of the effects.
        root: the estimate of L, (q, q).
        t: of length one, (q,).
        least: standard deviation of an effect that t has nothing of, to begin with.
    """
    involved = (t.abs() > 1e-9).nonzero().flatten().tolist()
    pivot = involved[-1]
    rest = [i for i in range(covariance.q) if i != pivot]
    where = {cell: e for e, cell in enumerate(covariance.places)}
    kept = [(cell, e) for cell, e in where.items() if pivot not in cell]
    free = root.new_zeros(covariance.entries, len(kept))
    for column, ((i, c), e) in enumerate(kept):
        free[e, column] = 1.0
        if i in involved:
            free[where[pivot, c], column] = -t[i] / t[pivot]
    left = root - t[:, None] * (t @ root)
    first = torch.zeros_like(root)
    if rest:
        sigma = (left @ left.mT)[rest][:, rest]
        few = 1e-10 * (sigma.diagonal().max() + least.square())
        at = torch.tensor(rest)
        first[at[:, None], at] = torch.linalg.cholesky(sigma + few * torch.eye(len(rest)).to(sigma))
        first = _lifted(first, [i for i in rest if i not in involved], least)
    return free, covariance.of_matrix(first)[torch.tensor([e for _, e in kept], dtype=torch.long)]


def _lifted(root: Tensor, rows: list[int] | range, least: Tensor) -> Tensor:
    """The root with rows of at least this length: at zero the likelihood has no slope, whatever it is elsewhere."""
    root = root.clone()
    for i in rows:
        if root[i].norm() < least:
            root[i, i] = least
    return root
