"""The marginal likelihood of a gaussian response, from sums over a client's rows that are made once.

    V_j = s^2 W^-1 + Z L L^T Z^T,    W precisions of rows (1, or 1 / se^2 and s = 1)

    log p(D_j | beta, L, s) = -1/2 (n log 2 pi + log |V_j| + (y - X beta)^T V_j^-1 (y - X beta))

With G = [Z X y]^T W [Z X y], F F^T = I + L^T G_zz L / s^2 and w = F^-1 L^T G_z[xy],

    [X y]^T V^-1 [X y] = (G_[xy][xy] - w^T w / s^2) / s^2,    log |V| = n log s^2 - sum log W + 2 sum log diag F.

So a client's likelihood is a quadratic in beta whose coefficients are functions of L and s alone: these, packed, are
what clients send, with their derivatives. After one pass nothing depends on how many rows there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk

from .covariance import Covariance
from .model import IMPOSSIBLE, MixedModel, sound
from .taylor import Taylor

#: points x clients x packed numbers that are computed at a time
NUMBERS_PER_PASS = 10_000_000


@dataclass(frozen=True)
class RowSums:
    """A local step: G, and n with sum log W, of clients that have not made them yet.

    Args:
        method: whose columns.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """G (q + p + 1, q + p + 1), and two numbers."""
        return ("gram", "rows")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """One pass over the rows, the first time."""
        if bool((chunk.values["rows"][..., 0] > 0).all()):
            return chunk
        parts = [row_sums(self.method, chunk.part(first, last).batch()) for first, last in buckets(chunk.sizes)]
        gram, rows = (torch.cat(found).unsqueeze(1) for found in zip(*parts, strict=True))
        return chunk.put({"gram": gram, "rows": rows})


def row_sums(method: MixedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """G (S, m, m) and [n, sum log W] (S, 2) of rows (S, n), each as often as its weight says."""
    columns = method.network.split(batch.x)
    away = batch.y - method.network.offset - (0.0 if columns.offset is None else columns.offset)
    both = torch.cat([columns.z, columns.x, away[..., None]], -1)
    precision = torch.ones_like(batch.y) if columns.known is None else columns.known.square().reciprocal()
    times = torch.ones_like(batch.y) if columns.weight is None else columns.weight
    times = times if batch.mask is None else torch.where(batch.mask, times, 0.0)
    root = (times * precision).sqrt()[..., None] * both
    return root.mT @ root, torch.stack([times.sum(-1), (times * precision.log()).sum(-1)], -1)


def packed_size(p: int) -> int:
    """Numbers of :func:`packed` for p fixed effects."""
    return (p + 1) * (p + 2) // 2 + 1


def packed(method: MixedModel, gram: Tensor, rows: Tensor, numbers: Sequence[Any]) -> tuple[Any, Any]:
    """[X y]^T V^-1 [X y], its upper triangle row by row (..., c - 1, S), and log |V| + n log 2 pi (..., S).

    Entry by entry, with clients along the last dimension: of small matrices that takes a quarter of the time that it
    does through LAPACK, and the same lines serve numbers with derivatives.

    Args:
        method: whose L.
        gram: G, (m, m, S).
        rows: [n, sum log W], (2, S).
        numbers: what is searched, one after the other: :class:`.taylor.Taylor`, or tensors (M, 1) of many points.
    """
    q = method.covariance.q
    entries, others = entries_of(method, gram, numbers)
    log_s = others[0] if len(others) else None
    factor, w, inverse = eliminated(method.covariance, gram, entries, log_s)
    up, across = torch.triu_indices(gram.shape[0] - q, gram.shape[0] - q, device=gram.device)
    less = sum_of([at_rows(one, up) * at_rows(one, across) for one in w])
    cross = (gram[q:, q:][up, across] - less * over_rows(inverse)) * over_rows(inverse)
    volume = sum_of([factor[a][a].log() for a in range(q)]) * 2.0 + (rows[0] * math.log(2 * math.pi) - rows[1])
    return cross, volume if log_s is None else volume + rows[0] * (log_s * 2.0)


def eliminated(
    covariance: Covariance, gram: Tensor, entries: Sequence[Any], log_s: Any
) -> tuple[list[list[Any]], list[Any], Any]:
    """F, row by row, each entry (..., S); w = F^-1 L^T G_z[xy], q of (..., p + 1, S); and 1 / s^2.

    Args:
        covariance: where L's entries are.
        gram: G, (m, m, S).
        entries: of L, one after the other, as the numbers of :func:`packed`.
        log_s: likewise; None for 0.
    """
    q, places = covariance.q, covariance.places
    inverse: Any = gram.new_ones(()) if log_s is None else (log_s * -2.0).exp()
    lower = [[(i, entries[e]) for e, (i, k) in enumerate(places) if k == c] for c in range(q)]
    zl = [sum_of([over_rows(entry) * gram[i] for i, entry in lower[c]]) for c in range(q)]  # L^T G_z.
    factor: list[list[Any]] = []
    for a in range(q):
        row: list[Any] = []
        for c in range(a + 1):
            bend = sum_of([of_row(zl[a], i) * entry for i, entry in lower[c]]) * inverse
            rest = bend + 1.0 if c == a else bend
            for m in range(c):
                rest = rest - row[m] * (row[m] if c == a else factor[c][m])
            row.append(rest.sqrt() if c == a else rest / factor[c][c])
        factor.append(row)
    w: list[Any] = []
    for a in range(q):
        rest = from_row(zl[a], q)
        for c in range(a):
            rest = rest - over_rows(factor[a][c]) * w[c]
        w.append(rest / over_rows(factor[a][a]))
    return factor, w, inverse


def entries_of(method: MixedModel, like: Tensor, numbers: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """L's entries, learned or held, and what else is searched."""
    if method.settings.prior == "fixed":
        return list(method.covariance.diagonal(method.first_sd()).to(like)), numbers
    return numbers[: method.covariance.entries], numbers[method.covariance.entries :]


def over_rows(x: Any) -> Any:
    """Beside the rows of a matrix: tensors (M, S) of many points as (M, 1, S)."""
    return x.unsqueeze(-2) if isinstance(x, Tensor) and x.dim() > 1 else x


def of_row(x: Any, i: int) -> Any:
    """A row of (..., m, S)."""
    return x[i] if isinstance(x, Taylor) else x[..., i, :]


def from_row(x: Any, i: int) -> Any:
    """All rows from there of (..., m, S)."""
    return x[i:] if isinstance(x, Taylor) else x[..., i:, :]


def at_rows(x: Any, places: Tensor) -> Any:
    """Some rows of (..., m, S)."""
    return x[places] if isinstance(x, Taylor) else x[..., places, :]


def sum_of(parts: Sequence[Any]) -> Any:
    """One after the other."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def polynomial(method: MixedModel, gram: Tensor, rows: Tensor, numbers: Tensor) -> dict[str, Tensor]:
    """Each client's packed numbers at a point (k,), and their first and second derivatives there.

    Args:
        method: whose L.
        gram, rows: of clients, as for :func:`packed`.
        numbers: the point.

    Returns:
        cross (S, c), cross_1 (S, k, c), cross_2 (S, k, k, c).
    """
    if not len(numbers):
        return {"cross": at_points(method, gram, rows, numbers[None])[:, 0]}
    cross, volume = packed(method, gram, rows, Taylor.variables(numbers))
    both = [torch.cat([getattr(cross, part), getattr(volume, part)[None]]) for part in ("value", "slope", "bend")]
    value, slope, bend = both  # (c, S), (c, S, k), (c, S, k, k)
    fine = (sound(value).all(0) & sound(slope).all(2).all(0) & sound(bend).flatten(2).all(2).all(0))[None]
    value = torch.where(fine, value, 0.0)
    value[-1] = torch.where(fine[0], value[-1], -2 * IMPOSSIBLE)
    slope, bend = (torch.where(fine.view(1, -1, *[1] * (v.dim() - 2)), v, 0.0) for v in (slope, bend))
    return {
        "cross": value.mT.contiguous(), "cross_1": slope.permute(1, 2, 0).contiguous(),
        "cross_2": bend.permute(1, 2, 3, 0).contiguous(),
    }  # fmt: skip


def at_points(method: MixedModel, gram: Tensor, rows: Tensor, points: Tensor) -> Tensor:
    """Each client's packed numbers at points (M, k): (S, M, c); the others as for :func:`polynomial`."""
    size = max(1, NUMBERS_PER_PASS // (packed_size(len(method.network.fixed)) * rows.shape[-1]))
    parts = []
    for some in points.split(size):
        cross, volume = packed(method, gram, rows, some.T[..., None].unbind())
        cross, volume = cross.expand(len(some), *cross.shape[-2:]), volume.expand(len(some), volume.shape[-1])
        fine = (sound(cross).all(-2) & sound(volume)).unsqueeze(-2)
        volume = torch.where(fine, volume.unsqueeze(-2), -2 * IMPOSSIBLE)
        parts.append(torch.cat([torch.where(fine, cross, 0.0), volume], -2))
    return torch.cat(parts).permute(2, 0, 1).contiguous()


def clients_last(gram: Tensor) -> Tensor:
    """G (m, m, S) of (S, 1, m, m)."""
    return gram.squeeze(1).permute(1, 2, 0).contiguous()
