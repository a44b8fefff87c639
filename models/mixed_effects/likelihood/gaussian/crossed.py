"""Groups that cross the clients, such as items that all sites have: each group has columns of its own in clients' sums.

Let w_1 ... w_I ~ N(0, L L^T) be the effects. With C = [Z X y]^T V^-1 [Z X y] summed over all clients, Z the I q columns
of the groups, the server eliminates them as it does those of one region, whose root is I times L along a diagonal
(:mod:`.regions`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.data.formula.design import Columns

from ...model.levels import Level


def columns_above(level: Level, columns: Columns) -> Tensor:
    """Columns of a level's effects that the server eliminates, (S, n, .).

    Args:
        level: groups of clients have one set of columns for all; of groups that cross the clients each has its own,
            which are zero in the rows of others and where a group is not known. A smooth term's are there as they are.
        columns: of the rows.
    """
    z, group = columns.of(level.kind)
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
    one = torch.eye(level.groups, dtype=root.dtype, device=root.device)
    return (one[:, None, :, None] * root[..., None, :, None, :]).flatten(-2).flatten(-3, -2)


def matrices(level: Level) -> int:
    """How many matrices of sums there are: one for each group of clients, or one for all groups that cross them."""
    return 1 if level.crossed else level.groups
