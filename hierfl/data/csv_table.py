"""A csv file as a table whose columns have types."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from ..errors import UserError

if TYPE_CHECKING:
    import pandas as pd


#: entries of a csv file that say nothing (those of pandas)
MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
#: a column in which so many of the entries are numbers is meant to hold numbers
MIN_NUMBERS_SHARE = 0.5
_NUMBER = re.compile(r"[ \t]*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))[ \t]*")


def _cells(data: str, file: TextIO) -> tuple[list[str], list[list[str]], array[int]]:
    """Header, the cells of every column as text, and the line on which each row ends."""

    def checked() -> Iterator[str]:
        for line in file:
            if "\0" in line:
                raise UserError(f"{data} cannot be read as csv: it holds NUL characters")
            yield line

    rows = csv.reader(checked(), strict=True)
    header = [name or f"Unnamed: {place}" for place, name in enumerate(next(rows, []))]
    if twice := [name for name in header if header.count(name) > 1]:
        raise UserError(f"{data} has two columns called {twice[0]!r}")
    columns: list[list[str]] = [[] for _ in header]
    lines = array("q")
    for row in rows:
        if not row:
            continue  # an empty line
        if len(row) != len(header):
            raise UserError(f"{data}: line {rows.line_num} has {len(row)} entries, and the header {len(header)}")
        lines.append(rows.line_num)
        for column, cell in zip(columns, row, strict=True):
            column.append(cell)
    return header, columns, lines


def _typed(name: str, cells: list[str], lines: Sequence[int], strict: bool) -> pd.Series:
    """A column of a file as whole numbers, numbers, truth values or words.

    Raises:
        UserError: where most entries are numbers and some are not, if ``strict``.
    """
    import pandas as pd

    kinds = {cell: _kind(cell) for cell in set(cells)}
    present = set(kinds.values()) - {""}
    if present == {"whole"} and "" not in kinds.values():
        return pd.Series([int(cell) for cell in cells], dtype="int64")
    if present <= {"whole", "number"}:
        return pd.Series([float(cell) if kinds[cell] else float("nan") for cell in cells], dtype="float64")
    if present == {"truth"} and "" not in kinds.values():
        return pd.Series([cell.lower() == "true" for cell in cells], dtype="bool")
    strays = [k for k, cell in enumerate(cells) if kinds[cell] in ("truth", "word")]
    there = sum(kinds[cell] != "" for cell in cells)
    if strict and len(strays) <= (1 - MIN_NUMBERS_SHARE) * there:
        first = ", ".join(f"{cells[k]!r} (line {lines[k]})" for k in strays[:3])
        more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
        raise UserError(
            f"column {name!r} holds numbers, but also {first}{more}: mend them, leave them empty, or if they are all "
            "categories write every one as a word"
        )
    return pd.Series([cell if kinds[cell] else None for cell in cells], dtype="str")


def _kind(cell: str) -> str:
    """ "whole", "number", "truth", "word", or "" for a missing one."""
    if cell in MISSING:
        return ""
    if _NUMBER.fullmatch(cell):
        # (beyond 18 digits a whole number may not fit into 64 bits)
        return "whole" if cell.strip().lstrip("+-").isdigit() and len(cell.strip()) < 19 else "number"
    return "truth" if cell in ("True", "TRUE", "true", "False", "FALSE", "false") else "word"
