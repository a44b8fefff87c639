"""Sums over rows of products of columns of two levels, by pair of their groups: Z_l^T W Z_m."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .layout import Layout


def pair_sums(first: Tensor, group: Tensor, groups: int, other: Tensor, group_2: Tensor, groups_2: int) -> Tensor:
    """(..., groups q, groups_2 q_2) of rows (..., S, n, q) and (..., S, n, q_2) in groups (S, n)."""
    lead = torch.broadcast_shapes(first.shape[:-2], other.shape[:-2])
    values = first[..., :, None] * other[..., None, :]
    pair = (group.long() * groups_2 + group_2.long()).expand(*lead, first.shape[-2])
    client = torch.arange(lead.numel(), device=first.device).view(*lead, 1) * (groups * groups_2)
    q, q_2 = first.shape[-1], other.shape[-1]
    total = values.new_zeros(lead.numel() * groups * groups_2, q, q_2)
    total = total.index_add(0, (client + pair).flatten(), values.expand(*lead, *values.shape[-3:]).flatten(0, -3))
    return total.view(*lead, groups, groups_2, q, q_2).transpose(-3, -2).flatten(-4, -3).flatten(-2)


def own_sums(first: Tensor, group: Tensor, groups: int, other: Tensor) -> Tensor:
    """(..., groups, q, m) of rows (..., S, n, q) in groups (S, n), and columns (..., S, n, m) of the same rows."""
    lead = torch.broadcast_shapes(first.shape[:-2], other.shape[:-2])
    values = (first[..., :, None] * other[..., None, :]).expand(
        *lead, first.shape[-2], first.shape[-1], other.shape[-1]
    )
    client = torch.arange(lead.numel(), device=first.device).view(*lead, 1) * groups
    total = values.new_zeros(lead.numel() * groups, *values.shape[-2:])
    total = total.index_add(0, (client + group.long()).flatten(), values.flatten(0, -3))
    return total.view(*lead, groups, *values.shape[-2:])


def products(
    layout: Layout, columns: Sequence[tuple[Tensor, Tensor]], weight: Tensor, more: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks of [Z more]^T W [Z more]: of the first part alone (..., groups, q, q), of it with the others
    (..., groups, q, R + m), and of these, (..., R + m, R + m).

    Args:
        layout: of the effects.
        columns: of each level, as :meth:`.layout.Layout.columns` has them.
        weight: W, (..., S, n).
        more: dense columns, (S, n, m).
    """
    own, group = columns[layout.eliminated]
    weighted = own * weight[..., None]
    groups = layout.first.groups
    rest = [
        (*columns_of_part, part.groups)
        for columns_of_part, part in zip(_others(columns, layout.eliminated), layout.rest, strict=True)
    ]
    if more is not None:
        rest.append((more, torch.zeros_like(more[..., 0]), 1))
    diagonal = own_sums(weighted, group, groups, own)
    across = torch.cat([pair_sums(weighted, group, groups, *part_of_rest) for part_of_rest in rest], -1)
    rows = list[list[Tensor]]()
    for k, (z, group_2, size) in enumerate(rest):
        zw = z * weight[..., None]
        cells = list[Tensor]()
        for j, other in enumerate(rest):
            if j < k:
                cells.append(rows[j][k].mT)
            elif j > k:
                cells.append(pair_sums(zw, group_2, size, *other))
            else:
                cells.append(_blocks(own_sums(zw, group_2, size, z)))
        rows.append(cells)
    return diagonal, across.unflatten(-2, (groups, -1)), torch.cat([torch.cat(row, -1) for row in rows], -2)


def _blocks(own: Tensor) -> Tensor:
    """(..., g q, g q) with blocks (..., g, q, q) along the diagonal."""
    g = own.shape[-3]
    if g == 1:
        return own.squeeze(-3)
    identity = torch.eye(g, dtype=own.dtype, device=own.device)
    return torch.einsum("...gij,gh->...gihj", own, identity).flatten(-4, -3).flatten(-2)


def _others(columns: Sequence[tuple[Tensor, Tensor]], without: int) -> list[tuple[Tensor, Tensor]]:
    return [column for k, column in enumerate(columns) if k != without]
