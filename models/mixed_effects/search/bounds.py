"""Bounds: whether a standard deviation or a correlation is at its bound, in units that centre and scale the columns.

The distance of a standard deviation from its bound is itself, and that of a correlation r is sqrt(1 - r^2). The
likelihood is a smooth, even function of both. Inside, a distance is about 2 sqrt(T) of its standard errors. T is twice
what the log likelihood loses at the bound. At the bound a distance is zero but for rounding. The ratio has no units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.data.formula.grouping import Grouping

from ..model.covariance import Covariance
from ..model.equations import MixedModel
from .climb import MIN_CURVATURE_SHARE, eigen

#: an estimate is at its bound where its distance from the bound is below this share of the distance's standard error. A
#: climb that goes to the bound ends at a share of 1e-5 or less.
AT_BOUND = 1e-3
#: without a standard error: below this share of the response's, or for a correlation below this
SD_SHARE, CORRELATION_SHARE = 1e-3, 0.045
#: an estimate above this share of the response's standard deviation is not at its bound, whatever its standard error
FLAT_SHARE = 0.02
#: what is noted
SD_NOTE, CORRELATION_NOTE, NOT_IDENTIFIED = "at its lower bound", "at its bound", "not identified"
#: of a standard deviation that is not zero in the table, as of an intercept far from the covariates' means
AT_MEANS = SD_NOTE + ", covariates at their means"


class Bound(NamedTuple):
    """What an effect has to do with its bound.

    Attributes:
        note: where it is at its bound, in units that centre and scale the columns; else empty.
        end: where the number in the table's units is at its bound: the bound; else None.
        defined: whether there is such a number: a correlation with an effect that does not vary is none.
    """

    note: str = ""
    end: float | None = None
    defined: bool = True


def directions(grouping: Grouping, like: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (q, q) of length one: each effect in units that centre and scale the columns, and in the table's."""
    turn = grouping.to_users(like)
    return torch.eye(len(turn)).to(turn), turn / turn.norm(dim=1, keepdim=True)


def at_bounds(method: MixedModel, estimates: Mapping[str, Tensor]) -> dict[str, Bound]:
    """The bounds at which learned standard deviations and correlations of random effects are, by label.

    Args:
        method: whose.
        estimates: shared values by their short names.
    """
    bounds: dict[str, Bound] = {}
    for level, covariance in method.covariances.items():
        if level not in method.sizes:
            continue
        grouping, root = method.groupings[level], covariance.matrix(estimates[level])
        inside, own = (
            _close(method, estimates, level, rows) for rows in directions(grouping, estimates[level])
        )  # fmt: skip
        spread = (root.norm(dim=1) > FLAT_SHARE * method.network.scale).tolist()
        for k, label in enumerate(grouping.labels):
            if inside[k] and spread[k]:  # its standard error is a thousand times as much: the likelihood is flat
                bounds[f"sd({label})"], own[k] = Bound(NOT_IDENTIFIED), False
                continue
            note = (SD_NOTE if own[k] else AT_MEANS) if inside[k] else ""
            bounds[f"sd({label})"] = Bound(note, 0.0 if own[k] else None)
        rows = grouping.to_users(root) @ root
        for pair, (i, k) in enumerate(covariance.pairs):
            at, sign = covariance.q + pair, float((rows[i] @ rows[k]).sign())
            none, defined = inside[i] or inside[k], not (own[i] or own[k])
            note = NOT_IDENTIFIED if none else CORRELATION_NOTE if inside[at] else ""
            end = sign if defined and (none or own[at]) else None
            bounds[f"corr({grouping.names[i]}, {grouping.labels[k]})"] = Bound(note, end, defined)
    return bounds


def at_zero(method: MixedModel, estimates: Mapping[str, Tensor]) -> Tensor:
    """Which of the coordinates (k,) are logarithms of standard deviations that are at their bounds, as above."""
    values = []
    for level, size in method.sizes.items():
        near = [False] * size
        if level in method.covariances:
            rows = directions(method.groupings[level], estimates[level])[0]
            q = method.covariances[level].q
            near[:q] = _close(method, estimates, level, rows)[:q]
        values += near
    return torch.tensor(values, dtype=torch.bool)


def _close(method: MixedModel, estimates: Mapping[str, Tensor], level: str, rows: Tensor) -> list[bool]:
    """Which distances of :func:`distances` are as good as zero."""
    numbers, covariance = method.numbers(estimates), method.covariances[level]

    def of_numbers(at: Tensor) -> Tensor:
        return distances(covariance, rows @ covariance.matrix(method.parts(at)[level]))

    away = of_numbers(numbers)
    errors = errors_of(torch.autograd.functional.jacobian(of_numbers, numbers), estimates["curvature"])
    least = torch.full_like(away, CORRELATION_SHARE)
    least[: covariance.q] = SD_SHARE * method.network.scale
    near: list[bool] = torch.where(errors > 0, away < AT_BOUND * errors, away < least).tolist()
    return near


def distances(covariance: Covariance, root: Tensor) -> Tensor:
    """How far standard deviations (q) and correlations are from their bounds.

    Args:
        covariance: of the effects.
        root: whose rows are the effects', (q, q).
    """
    values = list(root.norm(dim=1))
    for i, k in covariance.pairs:
        other = (root[k] @ root[i]) / (root[i] @ root[i]) * root[i]
        values.append((root[k] - other).norm() / root[k].norm())
    return torch.stack(values)


def errors_of(jacobian: Tensor, curvature: Tensor) -> Tensor:
    """Standard errors (m,) of functions of the numbers, which directions without curvature add nothing to.

    Args:
        jacobian: of the functions, (m, k).
        curvature: at the estimates, (k, k).
    """
    values, vectors, scale = eigen(curvature)
    components = (jacobian / scale) @ vectors
    return (
        torch.where(values > MIN_CURVATURE_SHARE, components.square() / values.clamp_min(MIN_CURVATURE_SHARE), 0.0)
        .sum(1)
        .sqrt()
    )
