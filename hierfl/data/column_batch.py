"""Some clients' rows by the names of a table's columns: what a plain Pyro model is handed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from torch import Tensor

from ..errors import NoAttribute, UserError, unknown


@dataclass(frozen=True)
class ColumnBatch:
    """Rows of S clients, n each; shorter clients are padded with copies of a row of their own, which are masked.

    Attributes:
        columns: name -> (S, n).
        mask: (S, n), False where a row is padding; None where no row is.
        level_names: of each column of text, the levels that its codes 0, 1, ... represent.
    """

    columns: Mapping[str, Tensor]
    mask: Tensor | None = None
    level_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def num_clients(self) -> int:
        """S."""
        return next(iter(self.columns.values())).shape[-2]

    @property
    def width(self) -> int:
        """n."""
        return next(iter(self.columns.values())).shape[-1]

    @property
    def present(self) -> Tensor:
        """False where a row is padding, (S, n): for sites outside of the plate of rows, by ``poutine.mask``."""
        return torch.ones(self.num_clients, self.width, dtype=torch.bool) if self.mask is None else self.mask

    def __getitem__(self, name: str) -> Tensor:
        """A column, (S, n).

        Raises:
            UserError: for a column that the table does not have.
        """
        if name not in self.columns:
            raise unknown("column", name, list(self.columns))
        return self.columns[name]

    def __getattr__(self, name: str) -> Any:
        """None: columns are looked up by ``batch["NAME"]``.

        Raises:
            NoAttribute: which says so.
        """
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NoAttribute(f"a batch has no attribute {name!r}: a column is batch[{name!r}]")

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def client(self, name: str) -> Tensor:
        """A column that is the same in all rows of a client, (S, 1)."""
        return self[name][..., :1]

    def levels(self, name: str) -> tuple[str, ...]:
        """What the codes of a column of text represent.

        Raises:
            UserError: for a column of numbers.
        """
        self[name]
        if name not in self.level_names:
            raise UserError(f"column {name!r} holds numbers: it has no levels")
        return self.level_names[name]

    def clients(self) -> pyro.plate:
        """The plate of clients."""
        return pyro.plate("client", self.num_clients, dim=-2)

    def data(self) -> pyro.plate:
        """The plate of a client's rows."""
        return pyro.plate("data", self.width, dim=-1)
