"""Columns that a model reads as a client's: they must be the same in all rows of a client."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.errors import UserError

from .sites import Model, read_sites


@dataclass(frozen=True)
class _Noting(ColumnBatch):
    """A batch that notes which columns are read as a client's."""

    noted: list[str] = field(default_factory=list)

    def client(self, name: str) -> Tensor:
        self.noted.append(name)
        return super().client(name)


def refuse_varying(model: Model, design: ColumnDesign, batch: Batch, rows: int) -> None:
    """A column that ``batch.client`` reads, and that differs between rows of some client.

    Args:
        model, design: whose.
        batch: of some clients.
        rows: of the batch on which the model was read.

    Raises:
        UserError: which names the column.
    """
    template = design.template(torch.zeros((), dtype=torch.float64), rows)
    batch_of_notes = _Noting(template.columns, None, template.level_names)
    read_sites(model, batch_of_notes)
    stacked = design.stacked(batch)
    for name in dict.fromkeys(batch_of_notes.noted):
        column = stacked[:, design.columns.index(name)]
        if bool((column != column[:, :1]).any()):
            raise UserError(
                f"column {name!r} is read by batch.client, and differs between the rows of a client: "
                f"read it by batch[{name!r}]"
            )
