"""Groups that cross the clients, such as items that all sites have: each group has columns of its own in clients' sums.

Let w_1 ... w_I ~ N(0, L L^T) be the effects. With C = [Z X y]^T V^-1 [Z X y] summed over all clients, Z the I q columns
of the groups, the server eliminates them as it does those of one region, whose root is I times L along a diagonal
(:mod:`.regions`). Of several such factors and curves the columns are beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hierfl.data.formula.design import Columns

from ...model.equations import MixedModel
from ...model.levels import Level


def columns_above(level: Level, columns: Columns) -> Tensor:
    """Columns of a level's effects that the server eliminates, (S, n, .).

    Args:
        level: groups of clients have one set of columns for all; of groups that cross the clients each has its own,
            which are zero in the rows of others and where a group is not known. A smooth term's are there as they are.
        columns: of the rows.
    """
    z, group = columns.for_level(level.kind)
    if not level.crossed:
        return z
    if level.smooth:
        return z
    assert group is not None
    own = torch.nn.functional.one_hot(group.long(), level.size)[..., 1:].to(z)
    return (own[..., :, None] * z[..., None, :]).flatten(-2)


def root_of_all(level: Level, root: Tensor) -> Tensor:
    """The root of all effects' covariance that one elimination has, (..., I q, I q) of L (..., q, q).

    Of groups of clients that is L itself: regions are eliminated one by one.
    """
    if not level.crossed:
        return root
    identity = torch.eye(level.groups, dtype=root.dtype, device=root.device)
    return (identity[:, None, :, None] * root[..., None, :, None, :]).flatten(-2).flatten(-3, -2)


def matrices(levels: Sequence[Level]) -> int:
    """How many matrices of sums there are: one for each group of clients, or one for all groups that cross them."""
    return math.prod(1 if level.crossed else level.groups for level in levels)


def shared_columns(method: MixedModel, columns: Columns) -> Tensor:
    """Columns of all effects that the server eliminates, (S, n, .), level by level."""
    return torch.cat([columns_above(level, columns) for level in method.above], -1)


def root_above(method: MixedModel, numbers: Tensor) -> Tensor:
    """The root of the covariance of all of them, (..., m, m): that of each level along a diagonal.

    Args:
        method: whose.
        numbers: of the population, (..., k).
    """
    roots = [root_of_all(level, root_of(method, level, numbers)) for level in method.above]
    if len(roots) == 1:
        return roots[0]
    sizes = [root.shape[-1] for root in roots]
    rows, before = [], 0
    for root, size in zip(roots, sizes, strict=True):
        rows.append(torch.nn.functional.pad(root, (before, sum(sizes) - before - size)))
        before += size
    return torch.cat(rows, -2)


def root_of(method: MixedModel, level: Level, numbers: Tensor) -> Tensor:
    """L of a level's effects, (..., q, q), learned or held, at numbers (..., k)."""
    parts = method.parts(numbers[..., : method.k])
    return level.root(parts.get(level.name, method.first_roots()[level.name].to(numbers)))


def by_level(method: MixedModel, effects: Tensor) -> dict[Level, Tensor]:
    """Each level's (..., groups, q), of all effects (..., m)."""
    parts = effects.split([level.columns for level in method.above], -1)
    return {level: part.unflatten(-1, (-1, level.q)) for level, part in zip(method.above, parts, strict=True)}
