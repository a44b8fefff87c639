"""Tables: named ones, and csv files."""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from ..errors import UserError, unknown
from .readers.safe_files import open_regular

if TYPE_CHECKING:
    import pandas as pd

    from .formula.from_formula import Family


@dataclass(frozen=True)
class NamedTable:
    """A table with the model that is usually fitted to it."""

    about: str
    frame: Callable[[], pd.DataFrame]
    formula: str
    client: str
    error: str = ""
    family: Family = "gaussian"
    rounds: int = 30


def eight_schools() -> pd.DataFrame:
    """What coaching did in eight schools, with the standard errors of the eight estimates (Rubin, 1981)."""
    import pandas as pd

    return pd.DataFrame(
        {
            "school": list("ABCDEFGH"),
            "effect": [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0],
            "error": [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0],
        }
    )


def radon_like() -> pd.DataFrame:
    """Simulated: 919 houses in 85 counties, as unbalanced as Minnesota's radon survey (Gelman and Hill, 2007, ch. 12).

    log_radon = 1.45 - 0.7 floor + 0.7 log_uranium + county (standard deviation 0.3) + N(0, 0.75^2). floor is 1 where it
    was measured on the first floor, not in the basement; uranium belongs to the county. Four counties have one house,
    the largest has 116.
    """
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(85)
    sizes = np.sort(np.floor(np.exp(rng.normal(1.8, 0.95, 81))).astype(int).clip(2, 100))
    sizes = np.r_[[1] * 4, sizes]
    sizes[-1] = 116
    while sizes[:-1].sum() != 919 - 116:  # the others share what is left
        j = int(rng.integers(4, 84))
        sizes[j] = np.clip(sizes[j] + np.sign(919 - 116 - sizes[:-1].sum()), 2, 115)
    uranium, effect = rng.normal(0, 0.4, 85), rng.normal(0, 0.3, 85)
    who = np.repeat(np.arange(85), sizes)
    floor = (rng.random(len(who)) < 0.17).astype(int)
    radon = 1.45 - 0.7 * floor + (0.7 * uranium + effect)[who] + rng.normal(0, 0.75, len(who))
    return pd.DataFrame(
        {
            "county": [f"county-{j:02d}" for j in who],
            "log_radon": radon.round(4),
            "floor": floor,
            "log_uranium": uranium[who].round(4),
        }
    )


TABLES: dict[str, NamedTable] = {
    "eight-schools": NamedTable(
        "effects of coaching in 8 schools, with known standard errors (Rubin, 1981)",
        eight_schools, "effect ~ 1 + (1 | school)", "school", error="error", rounds=60,
    ),
    "radon-like": NamedTable(
        "simulated log radon in 919 houses of 85 counties, 1 to 116 each",
        radon_like, "log_radon ~ 1 + floor + log_uranium + (1 | county)", "county",
    ),
}  # fmt: skip


#: entries of a csv file that say nothing (those of pandas)
MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
#: a column in which so many of the entries are numbers is meant to hold numbers
MOSTLY = 0.5
_NUMBER = re.compile(r"[ \t]*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity))[ \t]*")


def is_table(data: str) -> bool:
    """Whether ``--data`` names a table rather than arrays."""
    return data in TABLES or data.endswith(".csv")


def read(data: str, used: Collection[str] = (), text: Collection[str] = ()) -> pd.DataFrame:
    """A named table, or a csv file (UTF-8, commas, a header).

    A csv file has no types, so they are found here. A column is whole numbers, numbers or truth values where every
    entry is one; else it is words. Entries of :data:`MISSING` are missing. A column of ``text`` is kept exactly as it
    is written, and lacks only what is empty: ``1``, ``01`` and ``1.0`` differ, and ``NA`` is a name.

    Args:
        data: a name of :data:`TABLES`, or the path of a file.
        used: columns whose values are used. In them, words among numbers (:data:`MOSTLY` and more) are a mistake.
        text: columns of names, the clients'.

    Raises:
        UserError: if there is no such table, the file cannot be read, or a column that is used holds strays.
    """
    if data in TABLES:
        return TABLES[data].frame()
    if not data.endswith(".csv"):
        raise unknown("table", data, [*TABLES, "FILE.csv"])
    import pandas as pd

    try:
        with TextIOWrapper(open_regular(data, "a .csv with a header"), encoding="utf-8-sig", newline="") as file:
            header, columns, lines = _cells(data, file)
    except (csv.Error, UnicodeError) as error:
        raise UserError(f"{data} cannot be read as csv: {error}") from error
    if not header:
        raise UserError(f"{data} cannot be read as csv: it is empty")
    if not lines:
        raise UserError(f"{data} has no rows")
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise UserError(f"{data} has one column, {header[0]!r}: a csv file's columns are separated by commas")
    typed = {}
    for name, cells in zip(header, columns, strict=True):
        if name in text:
            if name in used and all(_NUMBER.fullmatch(cell) for cell in set(cells) - MISSING):
                raise UserError(f"column {name!r} names the clients, which is text: as a number, it needs a copy")
            typed[name] = pd.Series([cell or None for cell in cells], dtype="str")
        else:
            typed[name] = _typed(name, cells, lines, strict=name in used)
    return pd.DataFrame(typed)


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
    if strict and len(strays) <= (1 - MOSTLY) * there:
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
