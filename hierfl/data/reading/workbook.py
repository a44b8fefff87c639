"""The cells of a sheet of an .xlsx workbook, as text."""

from __future__ import annotations

import io
import warnings
import zipfile
from datetime import date, datetime
from typing import Any

from ...errors import UserError
from ..readers.limits import DAMAGED, check_size
from .cells import Cells
from .remedies import Remedies


def sheet_cells(data: str, content: bytes, sheet: str, remedies: Remedies) -> Cells:
    """The cells of a workbook's sheet: the only one that has any, or the one that is named.

    Args:
        data: what the file is called.
        content: its bytes.
        sheet: name; empty for the only one.
        remedies: how remedies are written.

    Raises:
        UserError: without openpyxl, for a damaged file, or several sheets of which none is named.
    """
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise UserError(
            f"{data} is an .xlsx workbook, which needs pip install 'hierfl[xlsx]'; or save it as csv"
        ) from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            check_size(data, sum(part.file_size for part in packed.infolist()), "the unpacked workbook")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            book = load_workbook(io.BytesIO(content), read_only=True, data_only=True)
            sheets = {result.title: _rows(result) for result in book.worksheets}
    except UserError:
        raise
    except (*DAMAGED, KeyError) as error:
        raise UserError(f"{data} cannot be read as an .xlsx workbook: {error}") from error
    filled = {name: rows for name, rows in sheets.items() if rows}
    if sheet and sheet not in sheets:
        raise UserError(f"{data} has no sheet {sheet!r}; it has {', '.join(map(repr, sheets))}")
    if not sheet and len(filled) > 1:
        ways = " or ".join(remedies.say(sheet=name) for name in list(filled)[:5])
        raise UserError(f"{data} has several sheets: say {ways}")
    rows = sheets[sheet] if sheet else next(iter(filled.values()), [])
    if len(rows) < 2:
        raise UserError(f"{data} has no rows" if rows else f"{data} cannot be read as a table: it is empty")
    width = max(k + 1 for _, row in rows for k, cell in enumerate(row) if cell)
    table = [[*row, *[""] * (width - len(row))][:width] for _, row in rows]
    header = [name or f"Unnamed: {number}" for number, name in enumerate(table[0])]
    return Cells(header, [list(column) for column in zip(*table[1:], strict=True)], [line for line, _ in rows[1:]])


def _rows(sheet: Any) -> list[tuple[int, list[str]]]:
    """Rows that hold anything, with their numbers."""
    result = [(k + 1, [_text(cell) for cell in row]) for k, row in enumerate(sheet.iter_rows(values_only=True))]
    return [(k, row) for k, row in result if any(cell.strip() for cell in row)]


def _text(cell: object) -> str:
    """A cell as a csv file has it."""
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, datetime) and not (cell.hour or cell.minute or cell.second or cell.microsecond):
        return cell.date().isoformat()
    return cell.isoformat() if isinstance(cell, date) else str(cell)
