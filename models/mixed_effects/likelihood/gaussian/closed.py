"""Elimination of one level's effects with two derivatives in closed form, from sums of products that are constant.

With R = L / s, Sigma = R R^T and G's parts G_zz and G_zY, derivatives by the numbers i and j of R,

    Q = (I + Sigma G_zz)^-1,    N = G_zz Q,    U = Q^T G_zY
    left    =  G_YY - G_zY^T Q Sigma G_zY
    left_i  = -U^T Sigma_i U,      left_ij = -U^T (Sigma_ij - Sigma_i N Sigma_j - Sigma_j N Sigma_i) U
    log |F F^T|_i = tr N Sigma_i,  log |F F^T|_ij = tr N Sigma_ij - tr N Sigma_i N Sigma_j

So there are as many operations of however many effects and numbers. What a client's sums are functions of, too, is
eliminated entry by entry (:mod:`.entrywise`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...model.covariance import Covariance
from ...model.levels import Level
from .elimination import eliminate, places, upper
from .entrywise import Entrywise, at_rows, summed
from .taylor import Taylor


def eliminated(covariance: Covariance, gram: Any, entries: Sequence[Any], log_s: Any) -> tuple[Any, Any]:
    """What is left of G times s^2, its upper triangle row by row (..., c, S), and what log |V| gains, (..., S).

    Args:
        covariance: of the effects.
        gram: G times s^2, (m, m, S), whose first columns are theirs.
        entries: of L, one after the other: numbers with derivatives, or tensors (M, 1) of many points.
        log_s: likewise; None for 0.
    """
    numbers = [*entries, *([] if log_s is None else [log_s])]
    # One effect takes no longer entry by entry.
    if covariance.q > 1 and isinstance(gram, Tensor) and all(isinstance(number, Taylor) for number in numbers):
        root = Taylor.stack(entries)
        return differentiated(covariance, gram, root if log_s is None else root * (log_s * -1.0).exp())
    return eliminate(Entrywise(covariance, gram, entries, log_s))


def without_inside(
    inside: Sequence[Level], gram: Any, entries: Mapping[str, Sequence[Any]], log_s: Any
) -> tuple[Any, list[Any]]:
    """G of clients (..., m, m, S), and what each level inside adds to log |V|, (..., S).

    Args:
        inside: levels inside clients, outermost first.
        gram: of the groups of the innermost, (m_in, m_in, groups S), group by group.
        entries: of each level's L.
        log_s: likewise.
    """
    volumes = []
    for level in reversed(inside):
        m = gram.shape[-2] - level.q
        given, own = [number for number in (*entries[level.name], log_s) if number is not None], None
        if isinstance(gram, Tensor) and all(isinstance(number, Taylor) for number in given):
            # Of the many groups of the innermost level derivatives in its own numbers alone are held.
            own = Taylor.variables(torch.stack([number.value for number in given]))
        numbers = own or given
        count = len(entries[level.name])
        of_level, of_noise = numbers[:count], numbers[count] if len(numbers) > count else None
        both = eliminated(level.covariance, gram, of_level, of_noise)
        left, volume = (summed(number, level.size) for number in both)
        left, volume = (number.among(given) if own else number for number in (left, volume))
        gram = at_rows(left, places(m, gram.device))
        volumes.append(volume)
    return gram, volumes


def differentiated(covariance: Covariance, gram: Tensor, entries: Taylor) -> tuple[Taylor, Taylor]:
    """See :func:`eliminated`; of R's entries (r,)."""
    q, k = covariance.q, len(entries.slope)
    r, r_1, r_2 = (covariance.matrix(part) for part in (entries.value, entries.slope, entries.bend))
    product, across = r_1 @ r.T, r_1[:, None] @ r_1.mT
    sigma_1, twice = product + product.mT, r_2 @ r.T + across
    sigma = torch.cat([sigma_1, (twice + twice.mT).flatten(0, 1)]).flatten(1)  # (k + k^2, q^2)
    g = gram.permute(2, 0, 1)
    identity = torch.eye(q).to(g)
    factor = torch.linalg.cholesky_ex(identity + r.T @ g[:, :q, :q] @ r).L
    w = torch.linalg.solve_triangular(factor, r.T @ g[:, :q, q:], upper=False)
    # Solved, not subtracted: of many rows little is left.
    n, u = torch.linalg.solve_ex(identity + g[:, :q, :q] @ (r @ r.T), g[:, :q]).result.split([q, g.shape[-1] - q], 2)
    up, over = upper(g.shape[-1] - q, gram.device)
    value = g[:, up + q, over + q] - (w[..., up] * w[..., over]).sum(1)
    pairs = (u[:, :, None, up] * u[:, None, :, over]).flatten(1, 2)  # (S, q^2, c)
    slope, bend = (sigma @ pairs).split([k, k * k], 1)
    of_u = (sigma_1.flatten(0, 1) @ u).unflatten(1, (k, q)).transpose(1, 2).flatten(2)  # (S, q, k m)
    both = (of_u.mT @ (n @ of_u)).unflatten(2, (k, -1)).unflatten(1, (k, -1)).transpose(2, 3)[..., up, over]
    bend = both + both.transpose(1, 2) - bend.unflatten(1, (k, k))
    volume, volume_1 = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1), n.flatten(1) @ sigma.T
    n_sigma = n[:, None] @ sigma_1  # (S, k, q, q)
    volume_2 = volume_1[:, k:].unflatten(1, (k, k)) - n_sigma.flatten(2) @ n_sigma.mT.flatten(2).mT
    left = Taylor(value.mT, -slope.permute(1, 2, 0), bend.permute(1, 2, 3, 0))
    return left, Taylor(volume, volume_1[:, :k].mT, volume_2.permute(1, 2, 0))
