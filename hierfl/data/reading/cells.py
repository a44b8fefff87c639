"""The cells of a file of columns: what separates them, the header, and the lines that they are in."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from .remedies import Remedies

#: separators that are looked for
KNOWN = (",", ";", "\t", "|")
#: separators that are asked for
OTHER_SEPARATORS = (":", "^", "~", "#")


@dataclass(frozen=True)
class Cells:
    """A table of text.

    Attributes:
        header: names of the columns.
        columns: the entries of each one.
        lines: the line of the file on which each row ends.
        decimals: columns whose numbers the file has as numbers, not as text: a point in one is a decimal mark.
    """

    header: Sequence[str]
    columns: Sequence[Sequence[str]]
    lines: Sequence[int]
    decimals: frozenset[str] = frozenset()


def cells_of(data: str, text: str, sep: str, remedies: Remedies) -> Cells:
    """The cells of a text.

    Args:
        data: what the file is called.
        text: what is in it.
        sep: what separates columns; empty where it is to be found.
        remedies: how remedies are written.

    Raises:
        UserError: for rows of other lengths than the header, or a separator that is not sure.
    """
    skipped = 0
    first, _, rest = text.partition("\n")
    line = first.strip().strip('"')
    if line.lower().startswith("sep=") and len(line) <= 5:  # a line that Excel reads, and leaves out
        sep, text, skipped = sep or line[4:] or "\t", rest, 1
    return parsed(data, text, sep or _separator(data, text, remedies), skipped)


def _separator(data: str, text: str, remedies: Remedies) -> str:
    """What separates the columns: the one separator with which all rows are as long as the header.

    Raises:
        UserError: where there are several, but for the comma, which comes first.
    """
    fitting = {}
    for sep in KNOWN:
        widths = _widths(text, sep)
        if widths and widths[0] > 1 and len(set(widths)) == 1:
            fitting[sep] = widths[0]
        if sep == "," and sep in fitting:
            return sep
    if len(fitting) == 1:
        return next(iter(fitting))
    if fitting:
        ways = " or ".join(remedies.say(sep=sep) for sep in fitting)
        raise UserError(f"{data} has columns by several separators: say {ways}")
    blanks = _widths(text, " ")
    if blanks and blanks[0] > 1 and len(set(blanks)) == 1 and set(_widths(text, ",")) == {1}:
        ways = f"{remedies.say(sep='space')} or {remedies.say(sep='comma')}"
        raise UserError(f"{data} has one column, or columns by blanks: say {ways}")
    for sep in OTHER_SEPARATORS:
        widths = _widths(text, sep)
        if widths and widths[0] > 1 and len(set(widths)) == 1 and set(_widths(text, ",")) == {1}:
            raise UserError(f"{data} has one column, or columns by {sep!r}: say {remedies.say(sep=sep)} or "
                            f"{remedies.say(sep='comma')}")  # fmt: skip
    header = _widths(text.partition("\n")[0], ",")
    likely = [sep for sep in KNOWN[1:] if header == [1] and _widths(text.partition("\n")[0], sep)[0] > 1]
    return likely[0] if len(likely) == 1 else ","


def _rows(text: str, sep: str) -> Any:
    """A csv reader; several blanks are one separator."""
    return csv.reader(io.StringIO(text, newline=""), delimiter=sep, skipinitialspace=sep == " ", strict=True)


def _widths(text: str, sep: str) -> list[int]:
    """Cells of each row; none for what is no such file."""
    try:
        return [len(row) for row in _rows(text, sep) if row]
    except csv.Error:
        return []


def parsed(data: str, text: str, sep: str, skipped: int = 0) -> Cells:
    """Header, the cells of every column as text, and the line on which each row ends."""
    rows = _rows(text, sep)
    try:
        first = next((row for row in rows if row), list[str]())
        if sum(not name.strip() for name in first) > max(1, len(first) // 2):
            raise UserError(
                f"{data}: line {rows.line_num + skipped} names few columns, and is no header: delete the lines above it"
            )
        header = [name or f"Unnamed: {number}" for number, name in enumerate(first)]
        if not header:
            raise UserError(f"{data} cannot be read as csv: it is empty")
        columns: list[list[str]] = [[] for _ in header]
        lines = array("q")
        for row in rows:
            if not row or (1 < len(header) >= len(row) and not any(cell.strip() for cell in row)):
                continue  # an empty line, or one of separators alone
            line = rows.line_num + skipped
            if len(row) != len(header):
                entries = "1 entry" if len(row) == 1 else f"{len(row)} entries"
                above = ", or delete the lines above the header" if len(header) == 1 else ""
                raise UserError(
                    f"{data}: line {line} has {entries}, and the header {len(header)}: quote entries that "
                    f"hold {sep!r}, or say --sep or sep= for another separator{above}"
                )
            lines.append(line)
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
    except csv.Error as error:
        raise UserError(f"{data} cannot be read as csv: {error}") from error
    if not lines:
        raise UserError(f"{data} has no rows")
    return Cells(header, columns, lines)
