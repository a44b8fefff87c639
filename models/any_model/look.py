"""A few clients of a model together, and each of them alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign

from .levels import Model
from .log_joint import Complete, traced
from .sites import Coordinates, Sites

#: clients and rows that are looked at together, at most; two clients where each has three rows
MAX_CLIENTS, MAX_ROWS = 3, 6
#: how far from the start latents are, as in the first round of a fit
START_SD = 0.1


@dataclass(frozen=True)
class Look:
    """A few clients together.

    Attributes:
        model, sites: whose.
        batch: of S clients.
        other: the same, with other rows of the first client.
        x, v: latents, unconstrained, (p,) and (S, q).
    """

    model: Model
    sites: Sites
    batch: ColumnBatch
    other: ColumnBatch
    x: Tensor
    v: Tensor

    @classmethod
    def for_model(cls, model: Model, design: ColumnDesign, sites: Sites, batch: Batch | None) -> Look:
        """Returns the look at the first clients of a batch, or at ones without a batch."""
        if batch is None:
            text = torch.tensor([name in design.level_names for name in design.columns])
            columns = torch.where(text[:, None], 0.0, 1.0).double().expand(MAX_CLIENTS, -1, max(2, sites.rows))
        else:
            tables = whole(design, batch)[:MAX_CLIENTS]
            width = min(MAX_ROWS, *(rows.shape[-1] for rows in tables))
            columns = torch.stack([rows[:, :width] for rows in tables])
        columns, mask = design.lengthened(columns, None, sites.rows)
        count = MAX_CLIENTS if columns.shape[-1] != MAX_CLIENTS else MAX_CLIENTS - 1
        at = torch.arange(count) % len(columns)
        columns, mask = columns[at], None if mask is None else mask[at]
        other = columns.clone()
        other[0] = columns[-1]
        if torch.equal(other, columns):
            for i, name in enumerate(design.columns):
                levels = design.level_names.get(name)
                other[0, i] = (other[0, i] + 1).remainder(len(levels)) if levels else other[0, i] * 1.01 + 0.01
        generator = torch.Generator().manual_seed(0)
        p, q = len(sites.start), len(sites.client_start)
        x = sites.start + START_SD * torch.randn(p, generator=generator, dtype=torch.float64)
        v = sites.client_start + START_SD * torch.randn(count, q, generator=generator, dtype=torch.float64)
        x, v = x.to(columns), v.to(columns)
        return cls(model, sites, named(design, columns, mask), named(design, other, mask), x, v)

    @property
    def stacked(self) -> Tensor:
        """The columns of the few, (S, columns, n)."""
        return torch.stack(list(self.batch.columns.values()), 1)

    def run(self, batch: ColumnBatch, v: Tensor) -> Any:
        """The trace of all clients together."""
        globals_, clients = Coordinates(self.sites.globals), Coordinates(self.sites.clients)
        values, _ = globals_.constrained(globals_.split(self.x))
        parts = [clients.split(row) for row in v]
        free = {
            latent.name: torch.cat([part[latent.name] for part in parts], latent.axis or 0)
            for latent in self.sites.clients
        }
        transforms = {latent.name: latent.transform for latent in self.sites.clients}
        return traced(self.model, batch, Complete(values, free, transforms, {}, batch.mask, self.sites.depth))

    def further(self, *names: str) -> ColumnBatch:
        """The same with columns of the first client that are larger by 1, in units of whatever they are."""
        columns = {name: column.clone() for name, column in self.batch.columns.items()}
        for name in names:
            columns[name][0] += 1
        return replace(self.batch, columns=columns)

    def client_alone(self, j: int) -> ColumnBatch:
        """Client j alone."""
        cut = {name: column[j : j + 1] for name, column in self.batch.columns.items()}
        return replace(self.batch, columns=cut, mask=None if self.batch.mask is None else self.batch.mask[j : j + 1])


def whole(design: ColumnDesign, batch: Batch) -> list[Tensor]:
    """Each client's own rows, (columns, n_j)."""
    stacked = design.stacked(batch)
    return [rows if batch.mask is None else rows[:, batch.mask[j]] for j, rows in enumerate(stacked)]


def named(design: ColumnDesign, columns: Tensor, mask: Tensor | None) -> ColumnBatch:
    """Columns (S, columns, n) of some clients as a batch."""
    parts = dict(zip(design.columns, columns.unbind(1), strict=True))
    return ColumnBatch(parts, mask, design.level_names)
