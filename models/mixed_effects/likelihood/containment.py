"""Degrees of freedom of coefficients by containment: the number of groups from which a coefficient is estimated.

A column of the fixed effects that is the same in all rows of a client, or a client's own multiple of a random slope's
column, is learned from the J clients and not from their rows. Its t has as many degrees of freedom as there are
groups, less the groups of the level above and the coefficients that are learned from the same groups (Pinheiro and
Bates, 2000, 2.4.2). Which columns those are is read from sums: what is left of a column's squares once the random
column is regressed out in each group.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hierfl.data.formula.units import INTERCEPT
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ..model.arithmetic import of_groups
from ..model.equations import MixedModel
from ..model.levels import Level
from .quadrature.integral import passes

#: a column is a group's own multiple of another where this share of its squares is left
CONTAINED = 1e-9


def _grouped(method: MixedModel) -> list[Level]:
    """Levels above the clients in which rows have a group. Smooth terms are none."""
    return [level for level in method.above if not level.smooth]


def sizes(method: MixedModel) -> dict[str, tuple[int, ...]]:
    """Shapes of what a client sends: squares of the columns, and what is left of them by random column; by region the
    clients, and the sums of their means and of the squares of those; by group that crosses clients the same of rows.
    """
    p, q = len(method.network.fixed), method.covariance.q
    shapes = {"squares": (p,), "left": (q, p)}
    for level in method.inside:
        shapes[f"left_{level.kind}"] = (level.q, p)
    for level in _grouped(method):
        shapes["by_region"] = (level.groups, 2 * p + 1)
    return shapes


def sums(method: MixedModel, chunk: ClientChunk) -> State:
    """What clients send, a row for each, {name: (S, *shape)}; see :func:`sizes`."""
    parts = []
    for part in passes(method, chunk, 1):
        batch = part.batch()
        columns = method.network.split(batch.x)
        mask = torch.ones_like(batch.y) if batch.mask is None else batch.mask.to(batch.y)
        x, z = columns.x * mask[..., None], columns.z * mask[..., None]
        sums_of = {"squares": x.square().sum(-2), "left": _left(x, z, mask)}
        for level in method.inside:
            z_inner, group = columns.for_level(level.kind)
            sums_of[f"left_{level.kind}"] = _left(x, z_inner * mask[..., None], mask, group, level.size)
        for level in _grouped(method):
            group = columns.for_level(level.kind)[1]
            assert group is not None
            if level.crossed:
                moments = torch.cat([mask[..., None], x, x.square()], -1)
                own = torch.nn.functional.one_hot(group.long(), level.size)[..., 1:].to(moments)
                sums_of["by_region"] = own.mT @ moments
                continue
            mean = x.sum(-2) / mask.sum(-1, keepdim=True).clamp_min(1.0)
            moments = torch.cat([torch.ones_like(mean[:, :1]), mean, mean.square()], -1)
            number = (group.amax(-1).long() - 1).clamp_min(0)
            indicator = torch.nn.functional.one_hot(number, level.groups).to(moments)
            sums_of["by_region"] = indicator[..., None] * moments[:, None]
        parts.append(sums_of)
    return {k: torch.cat([part[k] for part in parts]) for k in parts[0]}


def _left(x: Tensor, z: Tensor, mask: Tensor, index: Tensor | None = None, size: int = 1) -> Tensor:
    """Squares of x (S, n, p) once a constant and each of z (S, n, q) are regressed out in each group, (S, q, p).

    A constant column of z changes nothing: the constant is always regressed out.
    """
    index = torch.zeros_like(mask) if index is None else index

    def of_group(values: Tensor) -> Tensor:
        """Sums over each row's group, (S, n, .)."""
        total = values.new_zeros(len(values), size, values.shape[-1])
        total.scatter_add_(1, index.long()[..., None].expand_as(values), values)
        return of_groups(total.unsqueeze(1), index)

    rows = of_group(mask[..., None]).clamp_min(1.0)
    x, z = ((v - of_group(v * mask[..., None]) / rows) * mask[..., None] for v in (x, z))
    left = []
    for k in range(z.shape[-1]):
        column = z[..., k, None]
        square = of_group(column.square())
        varies = square > CONTAINED * of_group(mask[..., None])
        slope = torch.where(varies, of_group(column * x) / torch.where(varies, square, 1.0), 0.0)
        left.append((x - column * slope).square().sum(-2))
    return torch.stack(left, 1)


def degrees_of_freedom(method: MixedModel, counts: Tensor, sums_of: Mapping[str, Tensor]) -> Tensor:
    """The degrees of freedom of each coefficient, (p,): infinite where it is learned from rows.

    Args:
        method: whose.
        counts: clients, rows, and groups inside clients where there are some.
        sums_of: sums over clients of :func:`sums`.
    """
    names, squares = method.network.fixed, sums_of["squares"].clamp_min(torch.finfo(torch.float64).tiny)
    clients = float(counts[0])
    df = torch.full((len(names),), torch.inf, dtype=torch.float64)
    regional = torch.zeros(len(names), dtype=torch.bool)
    crossed = any(level.crossed for level in _grouped(method))
    if crossed:
        df = df.minimum(_of_crossed(method, sums_of, squares))
    elif "by_region" in sums_of:
        p = len(names)
        number, total, square = sums_of["by_region"].split([1, p, p], -1)
        between = (square - total.square() / number.clamp_min(1)).sum(0)
        same = sums_of["left"].amin(0) <= CONTAINED * squares
        regional = same & (between <= CONTAINED * square.sum(0).clamp_min(torch.finfo(torch.float64).tiny))
    above = float(sum(level.groups for level in _grouped(method))) if regional.any() else 0.0
    client = torch.zeros(len(names), dtype=torch.bool)
    contained = sums_of["left"] <= CONTAINED * squares
    intercepts = [k for k, name in enumerate(method.network.random) if name in INTERCEPT]
    constant = contained[intercepts].any(0)
    for k in range(method.covariance.q):
        own = contained[k] & ~regional & (constant if k in intercepts else ~constant)
        client |= contained[k]
        df[own] = df[own].clamp(max=max(1.0, clients - above - int(own.sum())))
    if above and not crossed:
        df[regional] = max(1.0, above - int(regional.sum()))
    for level_index, level in enumerate(method.inside):
        of_level = sums_of.get(f"left_{level.kind}", ())
        for k in range(len(of_level)):
            own = (of_level[k] <= CONTAINED * squares) & ~regional & ~client
            df[own] = df[own].clamp(max=max(1.0, float(counts[2 + level_index]) - clients - int(own.sum())))
    return df


def _of_crossed(method: MixedModel, sums_of: Mapping[str, Tensor], squares: Tensor) -> Tensor:
    """Degrees of freedom of coefficients whose columns are the same in all rows of a group that crosses clients, (p,).

    Args:
        method: whose.
        sums_of: by group the rows, and the sums of the columns and of their squares.
        squares: of the columns over all rows, (p,).
    """
    p = len(squares)
    rows, total, square = sums_of["by_region"].split([1, p, p], -1)
    within = (square - total.square() / rows.clamp_min(1)).sum(0)
    same = within <= CONTAINED * squares
    left = max(1.0, float((rows > 0).sum()) - float(same.sum()))
    return torch.where(same, left, torch.inf).to(squares)
