"""Random effects are eliminated from sums of products, level by level, innermost outward.

Of effects u ~ N(0, I) with b = L u, G = [Z Y]^T W [Z Y] / s^2 and F F^T = I + L^T G_zz L,

    w = F^-1 L^T G_zY,    [Y]^T V^-1 [Y] = G_YY - w^T w,    log |V| gains 2 sum log diag F

Y are the columns of the levels above, X and y. What is left of the groups of one level adds up to the G of the next.

Clients eliminate entry by entry, with clients along the last dimension. Of small matrices that takes a quarter of the
time that it does through LAPACK. The same lines serve numbers with derivatives, :class:`.taylor.Taylor`. The server
eliminates batches of whole matrices (:mod:`.regions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...model.covariance import Covariance
from ...model.levels import Level
from .taylor import Taylor


def without(level: Level, gram: Any, entries: Sequence[Any], log_s: Any) -> tuple[Any, Any, Any]:
    """What is left of G times s^2, its upper triangle row by row (..., c, S); log |F F^T| (..., S); and 1 / s^2.

    Args:
        level: whose effects are eliminated.
        gram: G, (..., m, m, S): the effects' columns are the first.
        entries: of their L, one after the other: numbers with derivatives, or tensors (M, 1) of many points.
        log_s: likewise; None for 0.
    """
    q, m = level.q, gram.shape[-2]
    factor, w, inverse = eliminated(level.covariance, gram, entries, log_s)
    upper = torch.triu_indices(m - q, m - q, device=gram.device) + q
    return remainder(gram, w, inverse, upper, q), log_volume(factor), inverse


def without_inside(
    inside: Sequence[Level], gram: Any, entries: dict[str, Sequence[Any]], log_s: Any
) -> tuple[Any, list[Any]]:
    """G of clients (..., m, m, S), and what each level inside adds to log |V|, (..., S).

    Args:
        inside: levels inside clients, outermost first.
        gram: of the groups of the innermost, (m_in, m_in, groups S), group by group.
        entries: of each level's L, see :func:`without`.
        log_s: likewise.
    """
    volumes = []
    for level in reversed(inside):
        left, volume, _ = without(level, gram, entries[level.name], log_s)
        m = gram.shape[-2] - level.q
        gram = at_rows(summed(left, level.size), places(m, gram.device))
        volumes.append(summed(volume, level.size))
    return gram, volumes


def places(size: int, device: Any = None) -> Tensor:
    """Where each entry of a symmetric matrix (size, size) is in its upper triangle, row by row."""
    up, across = torch.triu_indices(size, size, device=device)
    place = up.new_zeros(size, size)
    place[up, across] = torch.arange(len(up), device=device)
    return torch.triu(place) + torch.triu(place, 1).T


def symmetric(upper: Tensor, size: int) -> Tensor:
    """(..., size, size) of its upper triangle, row by row."""
    return upper[..., places(size).to(upper.device).flatten()].unflatten(-1, (size, size))


def remainder(gram: Any, w: Sequence[Any], inverse: Any, at: Tensor, q: int) -> Any:
    """G less w^T w / s^2 at some places (2, c) of G, beyond its first q: (..., c, S)."""
    up, across = at - q
    less = sum_of([at_rows(one, up) * at_rows(one, across) for one in w])
    whole = gram[at[0], at[1]] if isinstance(gram, Taylor) else gram[..., at[0], at[1], :]
    return whole - less * over_rows(inverse)


def log_volume(factor: Sequence[Sequence[Any]]) -> Any:
    """log |F F^T|, (..., S)."""
    return sum_of([row[-1].log() for row in factor]) * 2.0


def eliminated(
    covariance: Covariance, gram: Tensor, entries: Sequence[Any], log_s: Any
) -> tuple[list[list[Any]], list[Any], Any]:
    """F, row by row, each entry (..., S); w = F^-1 L^T G_z[xy], q of (..., p + 1, S); and 1 / s^2.

    Args:
        covariance: where L's entries are.
        gram: G, (..., m, m, S).
        entries: of L, one after the other, as the numbers of :func:`packed`.
        log_s: likewise; None for 0.
    """
    q, places = covariance.q, covariance.places
    inverse: Any = 1.0 if log_s is None else (log_s * -2.0).exp()
    lower = [[(i, entries[e]) for e, (i, k) in enumerate(places) if k == c] for c in range(q)]
    zl = [sum_of([over_rows(entry) * row_of(gram, i) for i, entry in lower[c]]) for c in range(q)]  # L^T G_z.
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


def row_of(x: Any, i: int) -> Any:
    """A row of each matrix (..., m, m, S)."""
    return x[i] if isinstance(x, Taylor) else x[..., i, :, :]


def summed(x: Any, groups: int) -> Any:
    """(..., S) of (..., groups S)."""
    return x.summed(groups) if isinstance(x, Taylor) else x.unflatten(-1, (groups, -1)).sum(-2)


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


def forward(factor: list[list[Tensor]], b: Sequence[Tensor]) -> list[Tensor]:
    """F^-1 b, entry by entry."""
    found: list[Tensor] = []
    for a, row in enumerate(factor):
        rest = b[a]
        for c in range(a):
            rest = rest - row[c] * found[c]
        found.append(rest / row[a])
    return found


def back(factor: list[list[Tensor]], v: Sequence[Tensor]) -> list[Tensor]:
    """F^-T v, entry by entry."""
    q, found = len(v), dict[int, Tensor]()
    for a in reversed(range(q)):
        rest = v[a]
        for c in range(a + 1, q):
            rest = rest - factor[c][a] * found[c]
        found[a] = rest / factor[a][a]
    return [found[a] for a in range(q)]


def turned(root: Tensor, u: Sequence[Tensor]) -> list[Tensor]:
    """L u, L (D, q, q), entry by entry."""
    return [sum_of([root[:, i, a, None] * u[a] for a in range(i + 1)]) for i in range(len(u))]
