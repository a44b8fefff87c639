"""The rows that a calibration simulates responses for: those of a table, or made ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hierfl.data.column_batch import ColumnBatch
from hierfl.data.column_federation import column_federation
from hierfl.data.column_table import outline
from hierfl.errors import UserError

from ..columns import columns_read
from ..sites import Model, read_sites

if TYPE_CHECKING:
    import pandas as pd

#: name of the clients' column of a table that is made
SITE = "site"


class _AnyColumn(Mapping[str, Tensor]):
    """A column of one row under every name; remembers the names."""

    def __init__(self, coded: Mapping[str, Any]) -> None:
        self.read, self.coded = list[str](), coded

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.read:
            self.read.append(name)
        return torch.full((1, 1), 0.0 if name in self.coded else 1.0, dtype=torch.float64)

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self.read)

    def __len__(self) -> int:
        return len(self.read)


@dataclass(frozen=True)
class _AnyBatch(ColumnBatch):
    """One client of one row that has every column; remembers which of them are a client's."""

    constant: list[str] = field(default_factory=list)

    @property
    def num_clients(self) -> int:
        return 1

    @property
    def width(self) -> int:
        return 1

    def client(self, name: str) -> Tensor:
        self.constant.append(name)
        return self[name]

    def levels(self, name: str) -> tuple[str, ...]:
        if name not in self.level_names:
            raise UserError(f"the model takes the levels of column {name!r}: say which, as in --values {name}=a,b")
        return super().levels(name)


@dataclass(frozen=True)
class Rows:
    """Clients and their rows.

    Attributes:
        frame: the rows, those of a client one after the other; responses have values that are replaced.
        group: the column that names the clients.
        words: where covariates come from, in one line.
    """

    frame: pd.DataFrame
    group: str
    words: str

    @property
    def clients(self) -> int:
        """How many there are."""
        return int(self.frame[self.group].nunique())


def rows_of_table(df: pd.DataFrame, group: str, model: Model, sites: int | None, rows: int | None) -> Rows:
    """The first clients of a table, and their first rows.

    Args:
        df: the table, with the responses' columns.
        group: the column that names the clients.
        model: reads the columns.
        sites, rows: at most so many; None for all.

    Raises:
        UserError: for a table that the model cannot read, or one with fewer clients.
    """
    columns = columns_read(model, outline(df, group))
    names = list(dict.fromkeys(df[group].astype(str)))
    if sites is not None and sites > len(names):
        raise UserError(f"the table has {len(names)} clients in column {group!r}, fewer than --sites {sites}")
    df = df[df[group].astype(str).isin(names[:sites])]
    df = df if rows is None else df.groupby(df[group].astype(str), sort=False).head(rows)
    federation, _ = column_federation(df, group, columns, "keep")
    sizes = federation.sizes()
    return Rows(
        df[[group, *columns]].reset_index(drop=True), group,
        f"covariates are the table's: {len(sizes)} clients of {min(sizes)} to {max(sizes)} rows",
    )  # fmt: skip


def made_rows(model: Model, sites: int, rows: int, values: Mapping[str, Sequence[str]], seed: int) -> Rows:
    """Clients of equally many rows, with columns that are drawn.

    A column has the values that are listed for it, each as likely as any other, or is standard normal. One that the
    model reads by ``batch.client(NAME)`` is the same in all rows of a client.

    Args:
        model: reads the columns.
        sites, rows: how many clients, and rows of each.
        values: of some columns, {name: values}; text where one is no number.
        seed: of what is drawn.

    Raises:
        UserError: for values of a column that the model does not read.
    """
    import pandas as pd

    text = {name: tuple(sorted(set(listed))) for name, listed in values.items() if not all(map(_is_number, listed))}
    columns = _AnyColumn(text)
    batch: Any = _AnyBatch(columns, None, text)
    try:
        read_sites(model, batch)
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None
    if not columns.read:
        raise UserError("the model reads no column: a calibration replaces the column that it observes")
    if strange := [name for name in values if name not in columns.read]:
        read = ", ".join(map(repr, columns.read))
        raise UserError(f"--values names the column {strange[0]!r}, which the model does not read; it reads {read}")
    generator = np.random.default_rng(seed)
    names = np.repeat([f"site {j:03d}" for j in range(sites)], rows)
    frame = pd.DataFrame({SITE: names})
    for name in columns.read:
        by_client = name in batch.constant
        count = sites if by_client else sites * rows
        if name in text:
            listed = generator.choice(list(text[name]), count)
            frame[name] = pd.Categorical(np.repeat(listed, rows) if by_client else listed, categories=list(text[name]))
            continue
        drawn = (
            generator.choice([float(value) for value in values[name]], count)
            if name in values
            else generator.standard_normal(count)
        )
        frame[name] = np.repeat(drawn, rows) if by_client else drawn
    return Rows(frame, SITE, _words(columns.read, values, batch.constant))


def _words(read: Sequence[str], values: Mapping[str, Sequence[str]], constant: Sequence[str]) -> str:
    parts = []
    for name in read:
        what = f"one of {', '.join(values[name])}" if name in values else "standard normal"
        parts.append(f"{name} {what}{' for each client' if name in constant else ''}")
    return f"columns are made, and those that are observed are replaced: {'; '.join(parts)}"


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
