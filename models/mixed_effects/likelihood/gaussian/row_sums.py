"""Sums of products over a client's rows, or those of its groups: all that a gaussian likelihood needs of them.

W are the precisions of rows:

    G = [Z_in Z Z_out X y]^T W [Z_in Z Z_out X y]                                                           (7)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Columns
from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk

from ...model.equations import MixedModel
from .crossed import columns_above


@dataclass(frozen=True)
class RowSums:
    """A local step: G, and n with sum log W, of clients that have not made them yet.

    Args:
        method: whose columns.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """G, and what :func:`counts_of` says."""
        return ("gram", "rows")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """One pass over the rows, the first time."""
        if bool((chunk.values["rows"][..., 0] > 0).all()):
            return chunk
        parts = [row_sums(self.method, chunk.part(first, last).batch()) for first, last in buckets(chunk.sizes)]
        gram, rows = (torch.cat(part_sums).unsqueeze(1) for part_sums in zip(*parts, strict=True))
        return chunk.put({"gram": gram, "rows": rows})


def columns_of(method: MixedModel) -> int:
    """m, columns of a client's G: [Z Z_out X y]."""
    above = sum(level.columns for level in method.above)
    return method.covariance.q + above + len(method.network.fixed) + 1


def row_sums(method: MixedModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """G (S, m, m) and :func:`counts_of`, (S, 4), of rows (S, n), each as often as its weight says.

    With groups inside clients G is (S, groups, m_in, m_in).
    """
    root, columns = whitened_rows(method, batch)
    rows = counts_of(method, batch)
    if columns.inner is None:
        return root.mT @ root, rows
    (level,) = method.inside
    of_all = columns.inner.long() + level.size * torch.arange(len(root), device=root.device)[:, None]
    products = (root[..., :, None] * root[..., None, :]).flatten(0, 1)
    gram = products.new_zeros(len(root) * level.size, *products.shape[1:])
    return gram.index_add_(0, of_all.flatten(), products).unflatten(0, (len(root), level.size)), rows


def whitened_rows(method: MixedModel, batch: Batch) -> tuple[Tensor, Columns]:
    """[Z_in Z Z_out X y], (S, n, m), times the roots of the rows' precisions and weights; and the columns."""
    columns = method.network.split(batch.x)
    both, precision = both_columns(method, columns, batch), precisions(columns, batch)
    return (times_of(columns, batch) * precision).sqrt()[..., None] * both, columns


def both_columns(method: MixedModel, columns: Columns, batch: Batch) -> Tensor:
    """[Z_in Z Z_out X y] of rows, (S, n, m)."""
    away = batch.y - method.network.offset - (0.0 if columns.offset is None else columns.offset)
    above = [columns_above(level, columns) for level in method.above]
    effects = (columns.z_inner, columns.z, *above, columns.x, away[..., None])
    return torch.cat([c for c in effects if c is not None], -1)


def counts_of(method: MixedModel, batch: Batch) -> Tensor:
    """n, sum log W, the number of the group of clients (0 for none), and how many groups each level inside has,
    (S, 3 + levels); a zero without such levels.
    """
    columns = method.network.split(batch.x)
    number = times_of(columns, batch)
    log_w = precisions(columns, batch).log() if columns.known is None else -2 * columns.known.log()
    nothing = batch.y.new_zeros(len(batch.y))
    region = nothing if columns.outer is None else columns.outer.amax(-1)  # where groups cross clients, no matter
    groups = list[Tensor]()
    for level in method.inside:
        group = columns.for_level(level.kind)[1]
        assert group is not None
        present = batch.y.new_zeros(len(batch.y), level.size).scatter_(1, group.long(), 1.0)
        groups.append(present[:, 1:].sum(1))  # rows that fill up have number 0
    return torch.stack([number.sum(-1), (number * log_w).sum(-1), region, *(groups or [nothing])], -1)


def precisions(columns: Columns, batch: Batch) -> Tensor:
    """W, (S, n): of known standard errors all, else over that of the residual."""
    if columns.known is not None:
        return columns.known.square().reciprocal()
    return torch.ones_like(batch.y) if columns.precision is None else columns.precision


def times_of(columns: Columns, batch: Batch) -> Tensor:
    """How often each row counts, (S, n)."""
    number = torch.ones_like(batch.y) if columns.weight is None else columns.weight
    return number if batch.mask is None else torch.where(batch.mask, number, 0.0)


def clients_last(gram: Tensor) -> Tensor:
    """G (m, m, S) of (S, 1, m, m), or (m, m, groups S) of (S, 1, groups, m, m)."""
    turned = gram.squeeze(1).movedim(0, -1)
    return (turned if turned.dim() == 3 else turned.permute(1, 2, 0, 3).flatten(2)).contiguous()
