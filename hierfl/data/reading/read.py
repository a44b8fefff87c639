"""Files and frames as tables whose columns have types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError, unknown
from .arrow import arrow_cells, is_arrow
from .cells import Cells, cells_of
from .decoded import OLD_EXCEL, ZIP, contents, decoded
from .options import OF_FILES, Reading, Type
from .remedies import FILE, FRAME, OPTIONS, Remedies
from .saved_set import is_saved, saved_cells
from .typed import Typing
from .workbook import sheet_cells

if TYPE_CHECKING:
    import pandas as pd

#: in the attributes of a frame that was read: columns in which a code for missing values was declared or looked for
CHECKED = "hierfl.checked"
#: what files of tables are called
ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".xlsx", ".parquet", ".arrow")


def read_cells(path: Path | str, reading: Reading, remedies: Remedies) -> Cells:
    """The cells of a file, whichever form it has.

    Raises:
        UserError: for a file that cannot be read, or whose form is not sure.
    """
    if is_saved(path):
        return saved_cells(path, reading)
    data, content = str(path), contents(path)
    if content.startswith(OLD_EXCEL):
        raise UserError(f"{data} is a workbook of an old form: save it as .xlsx or csv")
    if is_arrow(content):
        return arrow_cells(data, content, reading)
    if content.startswith(ZIP):
        declared = [name for name in ("sep", "encoding") if getattr(reading, name)]
        if declared:
            raise UserError(f"{data} is an .xlsx workbook, of which {declared[0]} says nothing")
        return sheet_cells(data, content, reading.sheet, remedies)
    if reading.sheet:
        raise UserError(f"{data} is no .xlsx workbook, so it has no sheet {reading.sheet!r}")
    return cells_of(data, decoded(path, content, reading.encoding, remedies), reading.sep, remedies)


def unused_options(path: Path | str) -> tuple[str, ...]:
    """Options that the form of a file does not have, such as the separator of a workbook.

    Raises:
        UserError: for a file that cannot be read.
    """
    if is_saved(path):
        return OF_FILES
    content = contents(path)
    if is_arrow(content):
        return OF_FILES
    return ("sep", "encoding") if content.startswith(ZIP) else ("sheet",)


def read_file(
    path: Path | str, reading: Reading, *, used: Collection[str] = (), text: Collection[str] = (),
    split: Collection[str] = (), known: Collection[str] = (), remedies: Remedies = OPTIONS, notes: bool = True,
    decimals: Collection[str] = (),
) -> pd.DataFrame:  # fmt: skip
    """A file as a table.

    Args:
        path: of the file.
        reading: how it is read.
        used: columns whose values are used: what is not sure of them is refused.
        text: columns of names, the clients'.
        split: columns that the formula makes categories.
        known: columns of which it is declared elsewhere which numbers or levels they have.
        remedies: how remedies are written.
        notes: whether a line says of categories that look like quantities.
        decimals: columns in whose numbers a point is surely a decimal mark.

    Raises:
        UserError: for a file that cannot be read, or a column that is used and not sure.
    """
    cells = read_cells(path, reading, remedies)
    typing = Typing(reading, remedies, known, notes, {*decimals, *cells.decimals})
    return _table(cells, typing, str(path), used, text, split)


def _table(
    cells: Cells, typing: Typing, data: str, used: Collection[str], text: Collection[str], split: Collection[str]
) -> pd.DataFrame:
    import pandas as pd

    wanted = {*used, *text, *typing.reading.columns}
    if twice := [name for name in cells.header if cells.header.count(name) > 1 and name in wanted]:
        raise UserError(f"{data} has two columns called {twice[0]!r}")
    if strange := sorted(typing.reading.columns - set(cells.header)):
        raise unknown("column", strange[0], cells.header)
    result: dict[str, pd.Series] = {}
    for name, column in zip(cells.header, cells.columns, strict=True):
        if name in result:
            continue  # of unused columns of one name the first is enough
        if name in text:
            _check_names(name, typing.reading)
            if name in used and _all_numbers(column, typing):
                raise UserError(f"column {name!r} names the clients, which is text: as a number, it needs a copy")
            result[name] = typing.named(name, column, cells.lines)
        else:
            result[name] = typing.column(name, column, cells.lines, strict=name in used, split=name in split)
    made = pd.DataFrame(result)
    made.attrs[CHECKED] = list(result)
    return made


def _check_names(name: str, reading: Reading) -> None:
    """Refuses what says nothing of a column of names."""
    if name in {*reading.order, *reading.reference} or reading.types.get(name, "category") != "category":
        raise UserError(f"column {name!r} names the clients, or groups of them: it has no type, order or reference")


def _all_numbers(column: Sequence[str], typing: Typing) -> bool:
    return typing.column("", column, range(len(column)), strict=False).dtype.kind in "iuf"


def read_table(
    table: Path | str | pd.DataFrame,
    *,
    sep: str = "",
    decimal: str = "",
    thousands: str = "",
    encoding: str = "",
    sheet: str = "",
    na: Sequence[str] = (),
    types: Mapping[str, Type] | None = None,
    order: Mapping[str, Sequence[str]] | None = None,
    reference: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
) -> pd.DataFrame:
    """A file, or the columns of text of a frame, as a table whose columns have types.

    Separators, UTF-8 and UTF-16, gzip and .xlsx are recognised. A column is whole numbers, numbers or truth values
    where every entry is one; else it is text. What may be a missing value or a level (``NA``, ``None``, ``.``, ``-``,
    ``missing``) is refused until it is declared.

    Args:
        table: a path, or a frame.
        sep: the separator of columns: one character, or comma, semicolon, tab, pipe, space.
        decimal: the decimal mark.
        thousands: the separator of thousands.
        encoding: of the text, such as "latin-1".
        sheet: of an .xlsx file.
        na: entries that are missing values, such as ``[".", "-999"]``, beside empty ones and those of pandas.
        types: {column: type}: "number" (units and currencies are left out), "percent" (as a fraction), "date" (days
            since 1970; "date-dmy" and "date-mdy" say the order of day and month) or "category".
        order: {column: its levels from the lowest}; the column becomes an ordered category.
        reference: {column: the level that the others are compared with}; the column becomes a category.
        columns: those that are read; None for all.

    Returns:
        A frame, whose declared categories are pandas' own.

    Raises:
        UserError: for a file that cannot be read, or entries that are not sure.
    """
    import pandas as pd

    declared = {
        "sep": sep, "decimal": decimal, "thousands": thousands, "encoding": encoding, "sheet": sheet, "na": na,
        "types": types or {}, "order": order or {}, "reference": reference or {},
    }  # fmt: skip
    reading = Reading.from_table(declared)
    if isinstance(table, pd.DataFrame):
        return _read_frame(table, reading, columns)
    cells = read_cells(table, reading, FILE)
    if columns is not None:
        if strange := [name for name in columns if name not in cells.header]:
            raise unknown("column", strange[0], cells.header)
        kept = [k for k, name in enumerate(cells.header) if name in columns]
        cells = replace(cells, header=[cells.header[k] for k in kept], columns=[cells.columns[k] for k in kept])
    if twice := [name for name in cells.header if cells.header.count(name) > 1]:
        raise UserError(f"{table} has two columns called {twice[0]!r}")
    typing = Typing(reading, FILE, decimals=cells.decimals)
    made = _table(cells, typing, str(table), (), (), ())
    for name, column in zip(cells.header, cells.columns, strict=True):
        if name not in reading.columns:
            typing.check_missing(name, column, cells.lines, made[name])
    return made


def _read_frame(df: pd.DataFrame, reading: Reading, columns: Sequence[str] | None) -> pd.DataFrame:
    """A frame whose columns of text, and those of which something is declared, are read as those of a file."""
    if declared := [name for name in ("sep", "encoding", "sheet") if getattr(reading, name)]:
        raise UserError(f"a frame has no {declared[0]}: it belongs to a file")
    wanted = list(df.columns) if columns is None else list(columns)
    if strange := [name for name in {*wanted, *reading.columns} if name not in df.columns]:
        raise unknown("column", strange[0], map(str, df.columns))
    if not df.columns.is_unique:
        raise UserError("the table has two columns of one name")
    typing, result = Typing(reading, FRAME), df[wanted].copy()
    codes = typing.codes()
    for name in wanted:
        column = df[name]
        if name in reading.columns or is_text(column):
            result[name] = typing.column(name, texts(column), range(len(df)), strict=False).set_axis(df.index)
        elif codes and column.dtype.kind in "iuf":
            result[name] = column.mask(column.isin(list(codes)))
    result.attrs[CHECKED] = sorted({*df.attrs.get(CHECKED, ()), *reading.types})
    return result


def is_text(column: pd.Series) -> bool:
    """Whether a column of a frame holds nothing but text and missing values; a category is declared, and no text."""
    if column.dtype.kind not in "OSU" and str(column.dtype) not in ("str", "string"):
        return False
    if str(column.dtype) == "category":
        return False
    present = column.dropna()
    return bool(len(present)) and all(isinstance(value, str) for value in present)


def texts(column: pd.Series) -> list[str]:
    """A column of a frame as a file has it: empty where a value is missing, whole floats without a point."""
    return [_text(value) for value in column.astype(object).where(column.notna(), None)]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
