"""Sums of products over a client's rows, kept in blocks: all that a gaussian likelihood needs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..gaussian.crossed import columns_above
from ..gaussian.row_sums import counts_of, precisions, times_of
from .layout import Layout
from .products import products


class Blocks(NamedTuple):
    """[Z Y]^T W [Z Y], Y = [Z_out X y], of S clients; see :func:`.products.products`.

    Attributes:
        diagonal: (S, g, q, q).
        across: (S, g, q, R + m).
        gram: (S, R + m, R + m).
        rows: of :func:`~..gaussian.row_sums.counts_of`, (S, 3 + levels inside).
    """

    diagonal: Tensor
    across: Tensor
    gram: Tensor
    rows: Tensor

    def some(self, first: int, last: int) -> Blocks:
        """The blocks of some clients."""
        return Blocks(*(part[first:last] for part in self))


@dataclass(frozen=True)
class JointSums:
    """A local step: the blocks of clients that have not made them yet.

    Args:
        method: whose columns.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """See :class:`Blocks`."""
        return Blocks._fields

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """One pass over the rows, the first time."""
        if bool((chunk.values["rows"][..., 0] > 0).all()):
            return chunk
        parts = [row_sums(self.method, chunk.part(first, last).batch()) for first, last in buckets(chunk.sizes)]
        return chunk.put({name: torch.cat([p[name] for p in parts]).unsqueeze(1) for name in Blocks._fields})


def shapes(method: MixedModel) -> dict[str, tuple[int, ...]]:
    """The shapes of one client's blocks."""
    layout, m = Layout.for_method(method), more_columns(method)
    g, q, dense = layout.first.groups, layout.first.level.q, layout.dense
    return {
        "diagonal": (g, q, q), "across": (g, q, dense + m), "gram": (dense + m, dense + m),
        "rows": (3 + len(method.inside),),
    }  # fmt: skip


def more_columns(method: MixedModel) -> int:
    """m, columns of [Z_out X y]."""
    return sum(level.columns for level in method.above) + len(method.network.fixed) + 1


def row_sums(method: MixedModel, batch: Batch) -> State:
    """Blocks of rows (S, n), each as often as its weight says."""
    columns, layout = method.network.split(batch.x), Layout.for_method(method)
    away = batch.y - method.network.offset - (0.0 if columns.offset is None else columns.offset)
    above = [columns_above(level, columns) for level in method.above]
    more = torch.cat([*above, columns.x, away[..., None]], -1)
    blocks = products(layout, layout.columns(columns), times_of(columns, batch) * precisions(columns, batch), more)
    return dict(zip(Blocks._fields, (*blocks, counts_of(method, batch)), strict=True))


def blocks_of(chunk: ClientChunk) -> Blocks:
    """That clients keep."""
    return Blocks(*(chunk.values[name].squeeze(1) for name in Blocks._fields))
