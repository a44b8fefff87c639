"""Which columns of a table a plain model reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_design import ColumnDesign
from hierfl.data.federation import Federation
from hierfl.errors import UserError

from .checking import check_model
from .own_guide.reading import first_run
from .sites import Model, read_sites


class _Recording(Mapping[str, Tensor]):
    """Columns that remember which of them were looked up."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns, self.read = columns, list[str]()

    def __getitem__(self, name: str) -> Tensor:
        value = self.columns[name]
        if name not in self.read:
            self.read.append(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class _RecordedBatch(ColumnBatch):
    """A batch whose size is no column."""

    @property
    def num_clients(self) -> int:
        return 1

    @property
    def width(self) -> int:
        return 1


def checked(model: Model, federation: Federation, design: ColumnDesign) -> ColumnDesign:
    """The design of a federation's columns, for a model that can be fitted to them.

    Raises:
        UserError: one line, for a model that cannot; see :func:`.checking.check_model`.
    """
    design = replace(design, rows=max(federation.sizes()))
    check_model(model, design, federation.to(dtype=torch.float64).batch(range(federation.clients)))
    return design


def columns_read(model: Model, design: ColumnDesign, guide: Model | None = None) -> tuple[str, ...]:
    """Names of the columns that a model reads, and its user's guide, in the table's order: run once, on one row.

    Raises:
        UserError: for a model that reads none.
    """
    template: Any = design.template(torch.zeros((), dtype=torch.float64))
    recording = _Recording(template.columns)
    try:
        with torch.random.fork_rng(devices=[]):  # a model that draws by itself is refused later
            read_sites(model, _RecordedBatch(recording, None, template.level_names))
    except UserError as error:  # Pyro adds the shapes of all sites
        raise UserError(str(error).splitlines()[0]) from None
    if guide is not None:
        first_run(guide, _RecordedBatch(recording, None, template.level_names))
    columns = tuple(name for name in design.columns if name in recording.read)
    if not columns:
        raise UserError(
            f"the model reads no column of the table: batch['NAME'] is one of {', '.join(map(repr, design.columns))}"
        )
    return columns
