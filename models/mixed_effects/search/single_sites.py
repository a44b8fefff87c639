"""Influence of single sites on the coefficients: each site's distance from the others, and the estimates without it.

Around the point of a climb a site's log likelihood is a quadratic in the coefficients beta,

    l_j(beta)  ~  b_j' beta - beta' A_j beta / 2,

A_j its information. Without site j the estimate is (sum A - A_j)^-1 (sum b - b_j): exact for a gaussian response given
the variances, one Newton step for others. Given the others, b_j - A_j beta_without has the covariance
A_j + A_j A_without^-1 A_j, if the model holds: its squared length over p is the distance of the site's own estimate,
about one for an honest site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hierfl.inference.server.robust.judged import Judged, Without
from hierfl.inference.server.robust.rules import RobustRule
from hierfl.inference.server.robust.standing import (
    EFFECTS,
    ESTIMATE,
    FEWEST,
    INFORMATION,
    LEAST_SPREAD,
    MOVES,
    SPREAD,
    bound,
    distances,
    estimate_bound,
    without_furthest,
)
from hierfl.inference.server.robust.weights import capped, middle
from hierfl.inference.state import State

from ..likelihood.gaussian.elimination import symmetric
from ..likelihood.gaussian.row_sums import columns_of
from ..likelihood.quadrature.crossed import given_effects
from ..model.effects import users_beta
from ..model.equations import MixedModel
from .single_moves import beside_others, moves_of
from .single_rows import Rows, effects_out, rows_of, spread_out, sure
from .without_one import known_alone

#: a site's information on a coefficient below this share of the others' is none, not a wrong one
NEGATIVE = -1e-6
#: of information by differences so small a share of the typical site's is not known
DIFFERENCES = 1e-4
#: a site's information per row counts as no less than this share of the median
LEAST_INFORMATION = 0.05
#: estimates are compared where Newton's step is shorter, in standard errors
MAX_TO_GO = 1.0
#: in units of the others', the distance of an estimate from which on a site counts less
HARDEST = 2.5
#: likewise in spreads of that of its rows: honest sites' standard deviations may differ by a factor of two
WIDEST = 5.0
#: a search that is not near after so many rounds with the same weights is judged where it is
LATE = 15
#: so many sites, those furthest off, are compared with the others without them
CANDIDATES = 5


class Quadratics(NamedTuple):
    """Sites' log likelihoods as functions of the coefficients.

    Attributes:
        linear: b_j, (R, p).
        information: A_j, (R, p, p).
        rows: n_j as declared, (R,).
        square: y_j' V_j^-1 y_j of a gaussian response, (R,); None of others.
        concave: whether no honest site's likelihood bends upwards.
    """

    linear: Tensor
    information: Tensor
    rows: Tensor
    square: Tensor | None = None
    concave: bool = True


def quadratics(method: MixedModel, shared: Mapping[str, Tensor], message: Mapping[str, Tensor]) -> Quadratics:
    """The quadratics of a round's messages around "effects.at", {key: (R, *shape)}; summed over groups of sites."""
    p, at = len(method.network.fixed), shared["effects.at"]
    groups = 1
    for level in method.above:
        groups *= 1 if level.crossed else level.groups
    rows = message["counts"][:, 1]
    if not method.likelihood.searches_beta:
        packed = message["cross"].unflatten(1, (groups, -1)).sum(1)[:, :-1]
        cross = symmetric(packed, columns_of(method) - method.covariance.q)
        return Quadratics(cross[:, -p - 1 : -1, -1], cross[:, -p - 1 : -1, -p - 1 : -1], rows, cross[:, -1, -1])
    if "crossed" in message:
        slope, curvature = given_effects(message["crossed"], shared["effects.crossed_at"], len(at))
    else:
        slope, curvature = message["slope"], message["curvature"]
    if method.above and "crossed" not in message:  # at nodes of each group: about the same at all of them
        slope = slope.unflatten(1, (groups, -1)).sum(1).mean(1)
        curvature = curvature.unflatten(1, (groups, -1)).sum(1).mean(1)
    k = len(at)
    information = curvature[:, k - p : k, k - p : k]
    if method.network.spread:
        information = sure(information, rows)
    if "crossed" in message:  # differences leave terms of second order in their steps, below zero, too
        typical = information.diagonal(dim1=-2, dim2=-1).median(0).values.clamp_min(0)
        information = information + torch.diag(DIFFERENCES * typical)
    concave = method.response_family.concave
    return Quadratics(slope[:, k - p : k] + information @ at[-p:], information, rows, concave=concave)


def estimate(linear: Tensor, information: Tensor) -> Tensor:
    """A^-1 b, (..., p); not a number where A is not positive."""
    factor, failed = torch.linalg.cholesky_ex(information)
    solution = torch.cholesky_solve(linear[..., None], factor).squeeze(-1)
    return torch.where((failed == 0)[..., None], solution, torch.nan)


def sized(quadratics: Quadratics, present: Tensor) -> Tensor:
    """Information per row beside the median site's, (R,): below zero where some of it is.

    It is taken for the coefficient with the least information. For an intercept that varies between sites a row of a
    small site has far more information than a row of a large one.
    """
    per_row = quadratics.information.diagonal(dim1=-2, dim2=-1) / quadratics.rows.clamp_min(1)[:, None]
    typical = middle(per_row, present[:, None].expand_as(per_row))
    share = per_row / torch.where(typical > 0, typical, 1)
    size = share.amin(1).clamp_min(LEAST_INFORMATION)
    return torch.where((share < NEGATIVE).any(1), -size, size)


def off(quadratics: Quadratics, weights: Tensor) -> tuple[Tensor, Tensor]:
    """How far each site's own estimate is from what the others expect, (R,), and the estimates without it, (R, p)."""
    w = weights[:, None]
    a, b = w[..., None] * quadratics.information, w * quadratics.linear
    rest, others = a.sum(0) - a, estimate(b.sum(0) - b, a.sum(0) - a)
    own = quadratics.information
    residual = quadratics.linear - (own @ others[..., None]).squeeze(-1)
    finite = others.isfinite().all(1)
    safe = torch.where(finite[:, None, None], rest, torch.eye(rest.shape[-1]).to(rest))
    # Others may say nothing of a coefficient that this site alone knows.
    spread = own + own @ torch.linalg.pinv(safe, hermitian=True) @ own
    unit = spread.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    unit = torch.where(unit > 0, unit, 1)
    inverse = torch.linalg.pinv(spread / (unit[:, :, None] * unit[:, None]), rtol=1e-9, hermitian=True)
    z = torch.where(finite[:, None], residual / unit, 0)
    far = (z * (inverse @ z[..., None]).squeeze(-1)).sum(1).clamp_min(0) / max(1, z.shape[1])
    return torch.where(finite, far.sqrt(), torch.nan), others


def outlying(
    quadratics: Quadratics, rows: Rows | None, moves: Tensor, present: Tensor, most: int, *, estimates: bool
) -> list[tuple[int, int, float]]:
    """The sites that stand out, one after the other: place, what, and by how much.

    Args:
        quadratics: of the sites.
        rows: their rows, which are compared where estimates are; None elsewhere.
        moves: how far their own estimates have moved, (R,).
        present: which sites have sent a message that counts, (R,).
        most: the largest number of such sites.
        estimates: whether estimates and rows are compared, or information and moves alone.
    """
    left, named = present.clone(), list[tuple[int, int, float]]()
    while len(named) < most and int(left.sum()) > FEWEST - 1:
        index = left.nonzero().flatten()
        once, own = bound(len(index), 1), estimate_bound(len(index))
        looks: list[tuple[int, float, Callable[[], Tensor]]] = [
            (INFORMATION, once, partial(_informed, quadratics, left, index, once)),
            (MOVES, own, partial(beside_others, moves, index)),
        ]
        if estimates and rows is not None:
            looks += [
                (ESTIMATE, own, partial(_estimated, quadratics, left, index, own)),
                (SPREAD, once, partial(spread_out, rows, index, once)),
                (EFFECTS, once, partial(effects_out, rows, index)),
            ]
        for what, most_of, values in looks:
            far = values()
            worst = int(far.argmax())
            if float(far[worst]) > most_of:
                named.append((int(index[worst]), what, float(far[worst])))
                left[index[worst]] = False
                break
        else:
            break
    return named


def _informed(quadratics: Quadratics, left: Tensor, index: Tensor, least: float) -> Tensor:
    """How far each site's information per row is from the others', in spreads, (I,); zero where none is beyond."""
    size = sized(quadratics, left)[index]
    if bool((size > 0).all()) and float(size.amax() / size.amin()) < np.exp(least * LEAST_SPREAD[0]):
        return torch.zeros_like(size)
    values = np.zeros((1, len(index), 3))
    values[0, :, 0] = size.abs().log().cpu().numpy()
    far = torch.from_numpy(np.nan_to_num(distances(values)[0, :, 0])).to(size)
    return torch.where(size < 0, torch.inf, far) if quadratics.concave else far


def _estimated(quadratics: Quadratics, left: Tensor, index: Tensor, least: float) -> Tensor:
    """How far each site's own estimate is from what the others expect, beside how far theirs are without it, (I,).

    Zero of sites that are not further than ``least`` from what the others expect: they cannot be beside theirs either.
    """
    w = left.to(quadratics.linear) * capped(quadratics.rows) / quadratics.rows.clamp_min(1)
    far = off(quadratics, w)[0][index].nan_to_num(0.0)
    ratio = torch.zeros_like(far)
    worst = far.topk(min(CANDIDATES, len(far)))
    for candidate in worst.indices[worst.values > least].tolist():
        site = int(index[candidate])
        rest = w.clone()
        rest[site] = 0
        others = index[index != site]
        squares = off(quadratics, rest)[0][others].square().cpu().numpy()
        wide = np.sqrt(np.nanmean(without_furthest(squares[None], len(index)))) if np.isfinite(squares).any() else 0.0
        ratio[candidate] = far[candidate] / max(1.0, float(wide))
    return ratio


def pulls(quadratics: Quadratics, rows: Rows, left: Tensor) -> Tensor:
    """How much sites count that pull harder than honest ones do, (R,): a power of two, so that it seldom changes."""
    index = left.nonzero().flatten()
    share = torch.ones_like(quadratics.rows)
    if len(index) >= FEWEST:
        far = _estimated(quadratics, left, index, HARDEST) / HARDEST
        far = far.maximum(spread_out(rows, index, WIDEST) / WIDEST)
        share[index] = torch.exp2(-far.clamp(1, 2.0**50).log2().ceil())
    return share


def judged(
    method: MixedModel, shared: Mapping[str, Tensor], message: Mapping[str, Tensor], present: Tensor,
    rule: RobustRule | None, memory: State,
) -> Judged:  # fmt: skip
    """See :class:`~hierfl.inference.server.robust.judged.Judging`.

    Args:
        method: whose coefficients.
        shared: as broadcast, for a round of a climb.
        message: around its point, {key: (R, *shape)}.
        present: which sites have sent a message that counts, (R,).
        rule: see there.
        memory: with a rule: who is left out, "out", rounds since then, "rounds", and :func:`~.single_moves.moves_of`.
    """
    own_quadratics, most = quadratics(method, shared, message), int(present.sum())
    moves = torch.zeros_like(own_quadratics.rows)
    # Far from the estimates, and with other variances, sites differ by more than they do.
    near, count = bool(shared["effects.to_go"] < MAX_TO_GO), (most - 1) // 2
    rows = rows_of(method, shared, message, *own_quadratics[:4]) if near or rule is not None else None
    left = present.clone()
    if rule is not None and rows is not None:
        out = memory.get("out", torch.zeros_like(present)).to(present.device)
        left &= ~out
        count = rule.most(most) - int((out & present).sum())
        at = None if own_quadratics.square is not None else shared["effects.at"][-own_quadratics.linear.shape[1] :]
        moves = moves_of(rows.own, own_quadratics.information, at, memory)
        rounds = memory.get("rounds", torch.zeros(()))
        near = near or bool(rounds >= LATE)
    # If the formula reproduces every row, information is what rounding leaves, and says nothing of a site.
    exact = method.reproduces_rows(shared)
    named = [] if exact else outlying(own_quadratics, rows, moves, left, count, estimates=near)
    for row, _, _ in named:
        left[row] = False
    if rule is not None:  # the rule's limit on sites that are left out holds in later rounds, too
        memory.update({"out": out | (present & ~left), "rounds": torch.zeros(()) if named else rounds + 1})
    cap = capped(own_quadratics.rows) / own_quadratics.rows.clamp_min(1)
    if rule is not None and near and rows is not None:
        cap = cap * pulls(own_quadratics, rows, left)
    weights = present.to(own_quadratics.linear) if rule is None else torch.where(left, cap, 0)
    return Judged(weights, partial(_measured, method, own_quadratics, present, left), named)


def _measured(method: MixedModel, sites: Quadratics, present: Tensor, left: Tensor) -> tuple[Tensor, Without]:
    """Measures of sites, (R, 4), and estimates with and without each beside those that are left, (R,)."""
    w = left.to(sites.linear)
    far, others = off(sites, w)
    a, b = (w.view(-1, *[1] * (v.dim() - 1)) * v for v in (sites.information, sites.linear))
    whole, total = a.sum(0), b.sum(0)
    beside = estimate(total - b + sites.linear, whole - a + sites.information)
    moved, unit = beside - others, whole.diagonal().clamp_min(0)
    influence = (moved.square() * unit).mean(1).sqrt()  # in standard errors
    measured = torch.stack([sized(sites, left).abs(), _cosines(sites.information, whole - a, unit), influence, far], 1)
    spread = torch.linalg.inv_ex(whole).inverse
    users = method.network.fixed_units.to_users(method.network.fixed, (len(unit),), total)
    errors = (users @ spread @ users.mT).diagonal().sqrt()
    mended, unknown = known_alone(others, whole - a, total - b, unit, users)
    alone = torch.where(unknown, torch.nan, users_beta(method, mended))
    without = Without(users_beta(method, beside), alone, errors)
    return torch.where(present[:, None], measured, torch.nan), without


def _cosines(own: Tensor, others: Tensor, unit: Tensor) -> Tensor:
    """Cosines between each site's information and the others', (R,), in units of all sites' diagonal."""
    scale = torch.where(unit > 0, unit, 1).rsqrt()
    first, two = ((v * scale[:, None] * scale).flatten(1) for v in (own, others))
    return torch.nn.functional.cosine_similarity(first, two, dim=1)
