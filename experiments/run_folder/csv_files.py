"""csv files of ours: one writer and one reader, between which text stays what it is.

A spreadsheet takes a cell that begins with = + - or @ for a formula, and runs it. Names of clients, columns and files
come from others. So such a cell of text gets an apostrophe before it, which the reader takes off again; numbers have
none, nor has text that is a number.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hierfl.data.readers.contents import read_bytes
from hierfl.errors import UserError
from hierfl.files import write_whole

#: beginnings that spreadsheets run; the last four are wide forms, which some of them take for the same
_RUNS = "=+@\t\r\uff1d\uff0b\uff0d\uff20-"
_ESCAPED, _DANGEROUS = re.compile(f"'+[{_RUNS}]"), re.compile(f"'*[{_RUNS}]")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def escaped(cell: Any) -> Any:
    """A cell as it is written: text that a spreadsheet would run gets an apostrophe (also where it has some)."""
    if isinstance(cell, str) and _DANGEROUS.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def unescaped(cell: Any) -> Any:
    """A cell as it was before :func:`escaped`."""
    return cell[1:] if isinstance(cell, str) and _ESCAPED.match(cell) else cell


def write_rows(path: Path, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows of a table, {column: cell}, as csv; what a row lacks, and None, is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([escaped(name) for name in names])
    writer.writerows([escaped(row.get(name)) for name in names] for row in rows)
    write_whole(path, text.getvalue().encode())


def write_frame(path: Path, frame: pd.DataFrame, index: str | None = None) -> None:
    """A frame as csv, without its index, or with it as a column of that name."""
    frame = frame.rename(columns=escaped)
    for name in frame.columns[[dtype.kind not in "biuf" for dtype in frame.dtypes]]:
        frame[name] = frame[name].map(escaped)
    text = frame.to_csv(index=index is not None, index_label=index, lineterminator="\n")
    write_whole(path, text.encode())


def read_frame(path: Path, text: Sequence[str] = (), needs: Sequence[str] = (), *, whole: bool = False) -> pd.DataFrame:
    """A csv file of ours; an empty frame of an empty file.

    Args:
        path: the file.
        text: columns of text, where ``01`` and ``NA`` are names; all others are numbers, or empty.
        needs: columns that have to be there.
        whole: whether the file was written at once, so that its last line has an end. Files that grow may lack it.

    Raises:
        UserError: for a file that is not there, is damaged or not of this form.
    """
    try:
        data = read_bytes(path, "a csv file of a run")
        if whole and data and not data.endswith(b"\n"):
            raise UserError(f"{path} is damaged: it is cut off")
        if not data.strip():
            frame = pd.DataFrame()
        else:
            header = pd.read_csv(io.BytesIO(data), nrows=0, index_col=False).columns
            text = [name for name in header if unescaped(name) in text]
            frame = pd.read_csv(
                io.BytesIO(data), dtype=dict.fromkeys(text, str), index_col=False, keep_default_na=False,
                na_values={name: ["", "nan"] for name in header if name not in text}, low_memory=False,
            )  # fmt: skip
    except UserError:
        raise
    except ValueError as error:  # pandas' own are of this kind, and those of text that is not UTF-8
        raise UserError(f"{path} is damaged, or no csv file: {error}") from error
    for name in frame.columns:
        if name in text:
            frame[name] = frame[name].map(unescaped)
        elif frame[name].dtype.kind not in "biuf" and len(frame):  # a column without rows has no type
            raise UserError(f"{path} is damaged: its column {name!r} holds more than numbers")
    frame = frame.rename(columns=unescaped)
    if lacking := [name for name in needs if name not in frame]:
        raise UserError(f"{path} is damaged: it has no column {lacking[0]!r}")
    return frame
