"""The marginal likelihood of a gaussian response, from sums over a client's rows that are made once.

    V_j = s^2 W^-1 + Z L L^T Z^T,    W precisions of rows (1, or 1 / se^2 and s = 1)

    log p(D_j | beta, L, s) = -1/2 (n log 2 pi + log |V_j| + (y - X beta)^T V_j^-1 (y - X beta))

With G = [Z X y]^T W [Z X y], F F^T = I + L^T G_zz L / s^2 and w = F^-1 L^T G_z[xy],

    [X y]^T V^-1 [X y] = (G_[xy][xy] - w^T w / s^2) / s^2,    log |V| = n log s^2 - sum log W + 2 sum log diag F.

So a client's likelihood is a quadratic in beta whose coefficients are functions of L and s alone: these, packed, are
what clients send, with their derivatives. After one pass nothing depends on how many rows there are.

Groups inside a client have a G each, with their own columns in front. Their effects are eliminated in the same way, and
what is left, [Z X y]^T V_in^-1 [Z X y] s^2, adds up to the client's G. Of clients that are in groups (regions), columns
of the groups' effects stand before X: they are eliminated by the server, from the sums over each group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...model.arithmetic import IMPOSSIBLE, sound
from ...model.equations import MixedModel
from .closed import eliminated, without_inside
from .entrywise import over_rows, summed
from .row_sums import columns_of
from .serial_sums import SerialSums
from .taylor import Taylor

#: points x clients x packed numbers that are computed at a time
NUMBERS_PER_PASS = 10_000_000


def packed_size(p: int) -> int:
    """Numbers of :func:`packed` for p fixed effects."""
    return (p + 1) * (p + 2) // 2 + 1


def packed(method: MixedModel, gram: Any, rows: Tensor, numbers: Sequence[Any]) -> tuple[Any, Any]:
    """[Z_out X y]^T V^-1 [Z_out X y], its upper triangle row by row (..., c - 1, S), and log |V| + n log 2 pi (..., S).

    Level by level, innermost outward; see :mod:`.elimination`.

    Args:
        method: whose L.
        gram: G, (m, m, S); with groups inside clients (m_in, m_in, groups S), group by group. Where residuals
            correlate: :class:`.serial_sums.SerialSums`, a function of the last number.
        rows: [n, sum log W, ...], (., S).
        numbers: what is searched, one after the other: :class:`.taylor.Taylor`, or tensors (M, 1) of many points.
    """
    volume: Any = rows[0] * math.log(2 * math.pi) - rows[1]
    if isinstance(gram, SerialSums):
        gram, correlated = gram.given(numbers[-1])
        volume, numbers = summed(correlated, groups_of(method)) + volume, numbers[:-1]
    entries, log_s = entries_of(method, rows, numbers)
    left, volumes = without_inside(method.inside, gram, entries, log_s)
    for inside in volumes:
        volume = inside + volume
    cross, own = eliminated(method.covariance, left, entries["root"], log_s)
    volume = own + volume
    if log_s is None:
        return cross, volume
    return cross * over_rows((log_s * -2.0).exp()), volume + rows[0] * (log_s * 2.0)


def entries_of(method: MixedModel, like: Any, numbers: Sequence[Any]) -> tuple[dict[str, Sequence[Any]], Any]:
    """Entries of each level's L, learned or fixed, and log s; None where s is known, or where G includes it."""
    if method.settings.prior == "fixed":
        beside = like.value if isinstance(like, Taylor) else like
        by_level: dict[str, Sequence[Any]] = {k: list(v.to(beside)) for k, v in method.first_roots().items()}
        return by_level, numbers[0] if len(numbers) and not method.network.own else None
    first, by_level = 0, {}
    for name, covariance in method.covariances.items():
        by_level[name] = numbers[first : first + covariance.entries]
        first += covariance.entries
    return by_level, numbers[first] if len(numbers) > first and not method.network.own else None


def polynomial(method: MixedModel, gram: Any, rows: Tensor, numbers: Tensor) -> dict[str, Tensor]:
    """Each client's packed numbers at a point (k,), and their first and second derivatives there.

    Args:
        method: whose L.
        gram, rows: of clients, as for :func:`packed`.
        numbers: the point.

    Returns:
        cross (S, c), cross_1 (S, k, c), cross_2 (S, k, k, c); of clients in groups c is of all groups, one after the
        other, zero but for their own.
    """
    if not len(numbers):
        return {"cross": at_points(method, gram, rows, numbers[None])[:, 0]}
    parts = [expanded(method, *part, numbers) for part in passes(method, gram, rows, (1 + len(numbers)) ** 2)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def expanded(method: MixedModel, gram: Any, rows: Any, numbers: Tensor) -> dict[str, Tensor]:
    """See :func:`polynomial`; G and what is in ``rows`` may be functions of the numbers, too."""
    cross, volume = packed(method, gram, rows, Taylor.variables(numbers))
    parts = ("value", "slope", "bend")  # (c, S), (k, c, S), (k, k, c, S)
    both = [torch.cat([getattr(cross, part), getattr(volume, part).unsqueeze(-2)], -2) for part in parts]
    fine = torch.stack([sound(v).flatten(0, -2).all(0) for v in both]).all(0)
    value, slope, bend = (torch.where(fine, v, 0.0) for v in both)
    value[-1] = torch.where(fine, value[-1], -2 * IMPOSSIBLE)
    terms = {"cross": value.movedim(-1, 0), "cross_1": slope.movedim(-1, 0), "cross_2": bend.movedim(-1, 0)}
    return {name: in_groups(method, value_of_part, rows, -1) for name, value_of_part in terms.items()}


def passes(method: MixedModel, gram: Any, rows: Tensor, copies: int) -> list[tuple[Any, Tensor]]:
    """Clients in parts that fit into memory, with ``each`` numbers for every number of G."""
    groups = groups_of(method)
    size = max(1, NUMBERS_PER_PASS // (copies * gram.shape[0] ** 2 * groups))
    if size >= rows.shape[-1]:
        return [(gram, rows)]
    if isinstance(gram, SerialSums):
        return list(zip(gram.split(size, groups), rows.split(size, -1), strict=True))
    split = gram.unflatten(-1, (groups, -1)).split(size, -1)
    return list(zip((part.flatten(-2) for part in split), rows.split(size, -1), strict=True))


def groups_of(method: MixedModel) -> int:
    """Places for groups inside a client; 1 where there are none."""
    return math.prod(level.size for level in method.inside)


def in_groups(method: MixedModel, values: Tensor, rows: Tensor, dim: int) -> Tensor:
    """Clients' numbers (S, ..., c, ...) beside those of other groups of clients, (S, ..., R c, ...), which are zero.

    Args:
        method: whose groups; without them nothing is done.
        values: along ``dim`` of them the groups are, one after the other.
        rows: the third number of each client is its group's, (3, S).
        dim: not the first.
    """
    if not method.above or method.above[0].crossed:
        return values.contiguous()
    (level,) = method.above
    last = values.movedim(dim, -1).unsqueeze(-2)
    own = torch.nn.functional.one_hot(rows[2].long() - 1, level.groups).to(values)
    beside = own.view(len(own), *[1] * (last.dim() - 3), -1, 1) * last
    return beside.flatten(-2).movedim(-1, dim).contiguous()


def at_points(method: MixedModel, gram: Any, rows: Tensor, points: Tensor) -> Tensor:
    """Each client's packed numbers at points (M, k): (S, M, c); the others as for :func:`polynomial`."""
    inside = gram.shape[0] ** 2 * sum(level.size for level in method.inside)
    if isinstance(gram, SerialSums):  # which has a G at each point
        inside = gram.shape[0] ** 2 * groups_of(method)
    numbers_each = max(packed_size(columns_of(method) - method.covariance.q - 1), inside)
    size = max(1, NUMBERS_PER_PASS // (numbers_each * rows.shape[-1]))
    parts = []
    for some in points.split(size):
        parts.append(of_points(method, gram, rows, some))
    return torch.cat(parts, 1)


def of_points(method: MixedModel, gram: Tensor, rows: Any, points: Tensor) -> Tensor:
    """See :func:`at_points`; G (M, m, m, S) and what is in ``rows`` (M, S) may be each point's own."""
    cross, volume = packed(method, gram, rows, points.T[..., None].unbind())
    cross, volume = cross.expand(len(points), *cross.shape[-2:]), volume.expand(len(points), volume.shape[-1])
    fine = (sound(cross).all(-2) & sound(volume)).unsqueeze(-2)
    volume = torch.where(fine, volume.unsqueeze(-2), -2 * IMPOSSIBLE)
    packed_numbers = torch.cat([torch.where(fine, cross, 0.0), volume], -2)
    return in_groups(method, packed_numbers.permute(2, 0, 1), rows, -1)
