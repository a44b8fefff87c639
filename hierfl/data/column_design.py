"""A table's columns by name, as what a method is made with that runs a plain Pyro model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..nn.architecture import Architecture
from ..nn.functional import Network
from ..nn.head import LinearHead
from .batch import Batch
from .column_batch import ColumnBatch


@dataclass(frozen=True)
class ColumnDesign(Architecture):
    """Which column of a federation's inputs is which.

    Attributes:
        columns: names, in the order of the inputs' columns.
        level_names: of each column of text, what its codes represent.
        rows: of the longest client: what a model needs that has latents of every row; 1 of any other.
    """

    columns: tuple[str, ...] = ()
    level_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rows: int = 1

    @classmethod
    def from_columns(
        cls, columns: Sequence[str], level_names: dict[str, tuple[str, ...]] | None = None, rows: int = 1
    ) -> ColumnDesign:
        """A design of these columns."""
        head = LinearHead(max(1, len(columns)), 1)
        return cls(
            Network(nn.Identity()), head, 1.0, "columns",
            columns=tuple(columns), level_names=dict(level_names or {}), rows=rows,
        )  # fmt: skip

    def stacked(self, batch: Batch) -> Tensor:
        """Columns of a batch, (S, columns, n); a padded row is a copy of its client's first."""
        x = batch.x
        if batch.mask is not None:
            x = torch.where(batch.mask[..., None], x, x[:, :1])
        return x.movedim(-1, 1)

    def lengthened(self, stacked: Tensor, mask: Tensor | None, rows: int) -> tuple[Tensor, Tensor | None]:
        """Columns (S, columns, n) and mask (S, n), with ``rows`` rows where n is less: copies of the first, masked."""
        count, _, width = stacked.shape
        if width >= rows:
            return stacked, mask
        present = stacked.new_ones(count, width, dtype=torch.bool) if mask is None else mask
        absent = present.new_zeros(count, rows - width)
        longer = torch.cat([stacked, stacked[..., :1].expand(-1, -1, rows - width)], -1)
        return longer, torch.cat([present, absent], -1)

    def named(self, stacked: Tensor, mask: Tensor | None) -> ColumnBatch:
        """One client's columns (columns, n) as a batch of one client."""
        parts = dict(zip(self.columns, stacked[:, None].unbind(0), strict=True))
        return ColumnBatch(parts, None if mask is None else mask[None], self.level_names)

    def template(self, like: Tensor, rows: int = 1) -> ColumnBatch:
        """One client with one row, or some: the first level of text, and ones."""
        row = [(like.new_zeros if name in self.level_names else like.new_ones)(1, rows) for name in self.columns]
        return ColumnBatch(dict(zip(self.columns, row, strict=True)), None, self.level_names)
