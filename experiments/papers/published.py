"""Published numbers."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from .definition import EntryKey, Table


@dataclass(frozen=True)
class Published:
    """One published number, in percent, and its standard error."""

    value: float
    sem: float | None


@cache
def _rows() -> tuple[dict[str, str], ...]:
    text = (files("hierfl.experiments.papers") / "published.csv").read_text()
    return tuple(csv.DictReader(io.StringIO(text)))


def published_numbers(paper: str, number: str) -> dict[tuple[EntryKey, str], Published]:
    """{(cell, PM or GM): number} of one table from published.csv."""
    return {
        (EntryKey(row["data"], int(row["clients"]), row["condition"], row["method"]), row["model"]): Published(
            float(row["value"]), float(row["sem"]) if row["sem"] else None
        )
        for row in _rows()
        if (row["paper"], row["table"]) == (paper, number)
    }


def numbers_of(table: Table) -> dict[tuple[EntryKey, str], Published]:
    """Those that are beside a table's own; none beside a user's."""
    return published_numbers(table.paper, table.number) if table.paper else {}
