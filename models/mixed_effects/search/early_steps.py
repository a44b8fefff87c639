"""The first steps of a climb, from the derivatives that clients' sums have anyway.

Of a gaussian response the first is a step of the EM algorithm (Laird and Ware, 1982). With D = dl/dL at L, and J groups
of a level, the posterior's second moments of a group's effects are on average L (I + N / J) L^T, where

    N = L^T D    (symmetric: D's entries in L's places say its lower triangle),    s^2  <-  s^2 (1 + l'(log s) / n)

From deviations that are too large, as the first values are, that is most of the way; Newton's method takes a step of a
third, and then many small ones. After it come steps of Newton's in x where L becomes L T(x), T lower triangular with a
diagonal exp(x_ii): in logarithms of deviations likelihoods are nearly parabolas. Where these bend both ways it is EM
again. Other responses without correlations, and without numbers of their own, have the steps in x alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..model.covariance import Covariance
from ..model.equations import MixedModel
from ..model.levels import Level
from .climb import INFINITE_LENGTH, LARGEST_RADIUS, Climb, newton_step

#: how many rounds have a next point of these; a climb that is nearer than so many standard errors has none
ROUNDS, MIN_TO_GO = 5, 0.2
#: log s moves by so much at most in a step of EM
LONGEST = 3.0
#: x of a step of Newton's in x: at most, or it is none; and down along the diagonal, to where it is shortened
LONGEST_NEWTON, FURTHEST_DOWN = 0.6, -1.5
#: without correlations, a logarithm that falls by so much again may be a zero's, to where Newton's own way is shorter
TO_ZERO = -0.3


def early(method: MixedModel, climb: Climb, counts: Tensor) -> Climb:
    """A climb whose next point is one of these, where it is at its beginning; else as it is.

    Args:
        method: whose population.
        climb: as of the point that was just seen.
        counts: clients, rows and groups inside, as they are broadcast.
    """
    number = int(climb.rounds)
    if number > ROUNDS or bool(climb.to_go < MIN_TO_GO) or not fits(method):
        return climb
    moments = has_moments(method)
    at = None if number == 1 and moments else log_point(method, climb)
    at = em_point(method, climb, counts) if at is None and moments else at
    return climb if at is None or not bool(at.isfinite().all()) else replace(climb, next=at)


def trusted(method: MixedModel, climb: Climb) -> bool:
    """Whether the point that was just looked at may be one of these: it says nothing of Newton's radius."""
    return 1 <= int(climb.rounds) <= ROUNDS and fits(method)


def fits(method: MixedModel) -> bool:
    """Whether these steps save rounds: where there are moments, and of deviations and coefficients alone."""
    if method.private or set(method.covariances).isdisjoint(method.sizes):
        return False
    return has_moments(method) or (independent(method) and set(method.sizes) <= {*method.covariances, "beta"})


def independent(method: MixedModel) -> bool:
    """Whether no effects are correlated."""
    return all(max(covariance.blocks) == 1 for covariance in method.covariances.values())


def has_moments(method: MixedModel) -> bool:
    """Whether numbers are L's entries and log s alone, of rows that count the same."""
    if method.likelihood.searches_beta or not set(method.sizes) <= {*method.covariances, "log_noise"}:
        return False
    design = method.network
    return "weight" not in design.extras and not design.own and design.correlation is None


def em_point(method: MixedModel, climb: Climb, counts: Tensor) -> Tensor | None:
    """Numbers (k,) after a step of EM; None where moments are none, by what rounding has left of them."""
    sizes, moved = list(method.sizes.values()), list[Tensor]()
    levels = {level.name: level for level in method.levels}
    parts = zip(method.sizes, climb.best.split(sizes), climb.gradient.split(sizes), strict=True)
    for name, own, slope in parts:
        if name not in levels:
            moved.append(own + 0.5 * (slope / counts[1]).clamp_min(-1).log1p().clamp(-LONGEST, LONGEST))
            continue
        covariance = levels[name].covariance
        root, lower = covariance.matrix(own), (covariance.matrix(own).mT @ covariance.matrix(slope)).tril()
        moments = torch.eye(len(root)).to(root) + (lower + lower.tril(-1).mT) / groups(method, levels[name], counts)
        factor, failed = torch.linalg.cholesky_ex(moments)
        if bool(failed):
            return None
        moved.append(covariance.of_matrix(root @ factor))
    return torch.cat(moved)


def groups(method: MixedModel, level: Level, counts: Tensor) -> Tensor | int:
    """How many there are of a level."""
    if level in method.above:
        return level.groups
    return counts[2 + method.inside.index(level)] if level.inside else counts[0]


def log_point(method: MixedModel, climb: Climb) -> Tensor | None:
    """Numbers (k,) after Newton's step in x; None where no maximum is near."""
    sizes = list(method.sizes.values())
    own = dict(zip(method.sizes, climb.best.split(sizes), strict=True))
    turns = [
        turn(method.covariances[k], v) if k in method.covariances else torch.eye(len(v)).to(v) for k, v in own.items()
    ]
    on_diagonal = [
        own[k].new_tensor([i == j for i, j in method.covariances[k].places]) if k in method.covariances else 0 * own[k]
        for k in own
    ]
    jacobian, diagonal = torch.block_diag(*turns), torch.cat(on_diagonal)
    slope = jacobian.mT @ climb.gradient
    curvature = jacobian.mT @ climb.curvature @ jacobian - torch.diag(slope * diagonal)
    x, to_go = newton_step(slope, curvature, climb.radius.new_tensor(LARGEST_RADIUS))
    down, others = (
        x * diagonal,
        torch.cat([own[k].new_full((n,), k not in method.covariances) for k, n in method.sizes.items()]),
    )
    up = (x - down.clamp(max=0.0)) * (1 - others)
    if bool(to_go == INFINITE_LENGTH) or bool(up.abs().max() > LONGEST_NEWTON):
        return None
    if int(climb.rounds) > 2 and independent(method) and bool(down.min() < TO_ZERO):
        return climb.next
    x = x * (FURTHEST_DOWN / down.min().clamp(max=FURTHEST_DOWN))
    x = x / (x.abs() * others / climb.longest).max().clamp_min(1.0)
    parts = []
    for name, step in zip(method.sizes, x.split(sizes), strict=True):
        if name not in method.covariances:
            parts.append(own[name] + step)
            continue
        covariance = method.covariances[name]
        change = covariance.matrix(step)
        parts.append(
            covariance.of_matrix(covariance.matrix(own[name]) @ (change.tril(-1) + change.diagonal().exp().diag()))
        )
    return torch.cat(parts)


def turn(covariance: Covariance, entries: Tensor) -> Tensor:
    """dL / dx at zero, (r, r), of L's entries (r,): that of x_ik has L's column i in column k."""
    root, columns = covariance.matrix(entries), list[Tensor]()
    for i, k in covariance.places:
        change = torch.zeros_like(root)
        change[:, k] = root[:, i]
        columns.append(covariance.of_matrix(change))
    return torch.stack(columns, -1)
