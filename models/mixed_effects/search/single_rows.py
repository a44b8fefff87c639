"""How single sites' rows lie about their own fit, and where their own effects are: what coefficients do not show.

A site may add rows whose residuals are large, or shift its response as a whole: its coefficients are then in line, and
the residual variance, or the variance of the random effects, takes it in. Of each site are compared

    spread     log of |r_j|^2 / (n_j - p), r_j about its own estimate; of other responses -log L_j / n_j
    effects    its own estimates of the coefficients that are random, one by one

each with the others' median, in units of the others' spread and of its own noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hierfl.inference.server.robust.standing import LEAST_MEASURE, LEAST_SPREAD, distances, medians, without_furthest
from hierfl.inference.server.robust.weights import middle

from ..model.equations import MixedModel

#: a sum of squares below this share of the response's is no honest one
IMPOSSIBLE = -1e-6
#: a row with less than this share of the typical one's information is where its site's likelihood is flat
MIN_INFORMATION_SHARE = 0.3
#: eigenvalues of information on unit diagonals that are no further below zero are zero
ROUNDING = 1e-9
#: below this share a site's information determines a coefficient not at all
DETERMINED = 0.99


class Rows(NamedTuple):
    """The rows of the sites.

    Attributes:
        own: their own estimates of the coefficients, (R, p).
        spread: (R,), not a number where nothing is known; infinite where no rows have it.
        noise: squared standard error of the logarithm, (R,); zero of other responses.
        effects: (R, m), not a number where a site's rows do not determine it.
        variance: squared standard errors of these, without what is between sites, (R, m).
        gaussian: whether spreads are sums of squares.
    """

    own: Tensor
    spread: Tensor
    noise: Tensor
    effects: Tensor
    variance: Tensor
    gaussian: bool


def rows_of(
    method: MixedModel, shared: Mapping[str, Tensor], message: Mapping[str, Tensor], linear: Tensor,
    information: Tensor, rows: Tensor, square: Tensor | None,
) -> Rows:  # fmt: skip
    """The rows of a round's messages around "effects.at".

    Args:
        method: whose rows.
        shared: as broadcast.
        message: {key: (R, *shape)}.
        linear, information, rows: b_j, A_j and n_j, see :class:`~.single_sites.Quadratics`.
        square: y_j' V_j^-1 y_j of a gaussian response, (R,); None of others.
    """
    unit = information.diagonal(dim1=-2, dim2=-1).abs().sqrt()
    unit = torch.where(unit > 0, unit, 1)
    correlated = information / (unit[:, :, None] * unit[:, None])
    inverse = torch.linalg.pinv(correlated, rtol=1e-9, hermitian=True) / (unit[:, :, None] * unit[:, None])
    own, p = (inverse @ linear[..., None]).squeeze(-1), linear.shape[1]
    if square is not None:
        left, free = square - (linear * own).sum(1), (rows - p).clamp_min(1)
        known = torch.where(rows > p, (left / free).clamp_min(1e-300).log(), torch.nan)  # else rounding is left alone
        spread = torch.where(left < IMPOSSIBLE * square.abs(), torch.inf, known)
        noise = 2 / free
    else:
        height = message["crossed"][:, 0, 0] if "crossed" in message else message["height"]
        # A single count has a long tail of its own.
        enough_rows = (rows > p) & (height.dim() == 1)
        spread = torch.where(enough_rows, -height.reshape(len(rows), -1)[:, 0] / rows.clamp_min(1), torch.nan)
        noise = torch.zeros_like(rows)
    share_known = (information @ inverse).diagonal(dim1=-2, dim2=-1)
    places, between = _random(method, shared)
    # Where a likelihood bends upwards, as that of few counts with many zeros may, its own estimate is no maximum.
    maximum = torch.linalg.eigvalsh(correlated)[:, :1] > -ROUNDING
    effects = torch.where((share_known[:, places] > DETERMINED) & maximum, own[:, places], torch.nan)
    variance = (inverse.diagonal(dim1=-2, dim2=-1)[:, places] - between).clamp_min(0)
    return Rows(own, spread, noise, effects, variance, square is not None)


def _random(method: MixedModel, shared: Mapping[str, Tensor]) -> tuple[list[int], Tensor]:
    """Which coefficients are random at a client, and their variances between clients, where units are the same."""
    net, at = method.network, shared["effects.at"]
    pairs = [(net.fixed.index(name), net.random.index(name)) for name in net.random if name in net.fixed]
    entries = method.parts(at).get("root")
    if entries is None:
        return [k for k, _ in pairs], at.new_zeros(len(pairs))
    root = method.covariance.matrix(entries)
    variances, sizes = (root @ root.mT).diagonal(), (net.fixed_units.scale, net.random_units.scale)
    same = [variances[r] * float(sizes[0][k] == sizes[1][r]) for k, r in pairs]
    return [k for k, _ in pairs], torch.stack(same) if same else at.new_zeros(0)


def sure(information: Tensor, rows: Tensor) -> Tensor:
    """Replaces the information of sites that have far less of it a row than typical, by that of as many typical rows.

    Where clients have residual deviations of their own a site's likelihood is flat or bends upwards far from its own
    estimate, and says nothing of its information.
    """
    per_row = information / rows.clamp_min(1)[:, None, None]
    upright = torch.linalg.eigvalsh(per_row)[:, 0] > 0
    factor, failed = torch.linalg.cholesky_ex(per_row[upright].mean(0))
    if not bool(upright.any()) or int(failed):
        return information
    half = torch.linalg.solve_triangular(factor, per_row, upper=False)
    least = torch.linalg.eigvalsh(torch.linalg.solve_triangular(factor, half.mT, upper=False))[:, 0]
    return (
        torch.where((least < MIN_INFORMATION_SHARE)[:, None, None], per_row[upright].mean(0), per_row)
        * rows[:, None, None]
    )


def spread_out(rows: Rows, index: Tensor, least: float) -> Tensor:
    """How far each site's spread of rows is from the others', in spreads, (I,); infinite where no rows have it.

    Zero where none can be further than ``least``.
    """
    spread = rows.spread[index]
    typical = middle(spread[:, None], spread.isfinite()[:, None])
    away = spread - typical
    if rows.gaussian:
        away = away.clamp_min(LEAST_MEASURE) / (1 + rows.noise[index] / LEAST_SPREAD[0] ** 2).sqrt()
    else:
        away = away / typical.abs().clamp_min(1)
    if not bool(away.isfinite().any()):
        return torch.where(spread == torch.inf, torch.inf, torch.zeros_like(spread))
    values = torch.where(away.isfinite(), away, torch.nan).cpu().numpy()[None, :, None]
    if not np.nanmax(values) - np.nanmin(values) > least * LEAST_SPREAD[0] and not bool((spread == torch.inf).any()):
        return torch.zeros_like(spread)
    far = torch.from_numpy(np.nan_to_num(distances(values)[0, :, 0])).to(spread)
    # Of other responses what is likelier than the others' rows is no lie.
    return torch.where(spread == torch.inf, torch.inf, far.abs() if rows.gaussian else far.clamp_min(0))


def effects_out(rows: Rows, index: Tensor) -> Tensor:
    """How far each site's own effects are from the others', in their spreads and its own noise, (I,)."""
    values, count = rows.effects[index].cpu().numpy(), len(index)
    if not values.size:
        return torch.zeros_like(rows.spread[index])
    places = np.arange(count - 1)
    others = values[places + (places >= np.arange(count)[:, None])]  # (I, I - 1, m)
    centre = medians(others)
    squares = without_furthest((others - centre[:, None]) ** 2, count)
    finite = np.isfinite(squares)
    wide = np.where(finite, squares, 0).sum(1) / np.maximum(1, finite.sum(1))
    unit = np.sqrt(wide + rows.variance[index].cpu().numpy())
    far = np.abs(values - centre) / np.where(unit > 0, unit, 1)
    return torch.from_numpy(np.nan_to_num(far).max(1)).to(rows.spread)
