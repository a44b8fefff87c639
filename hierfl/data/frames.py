"""Columns of a table as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError, unknown
from .client_names import client_names
from .labels import targets_and_labels
from .pool import Task
from .reading.frames import refuse_text, warn_of_codes

if TYPE_CHECKING:
    import pandas as pd


def is_table(x: object) -> bool:
    """Whether it is a pandas DataFrame."""
    return hasattr(x, "columns") and hasattr(x, "isna") and hasattr(x, "iloc")


def check_table(df: object, what: str = "df") -> None:
    """Refuses what is no table, or one with two columns of one name.

    Args:
        df: a table.
        what: the argument's name.

    Raises:
        UserError: for another object.
    """
    if not is_table(df):
        way = (
            f"pandas.read_csv({str(df)!r})" if hasattr(df, "__fspath__") or isinstance(df, str) else "pandas.DataFrame"
        )
        raise UserError(f"{what} is a pandas DataFrame, not {type(df).__name__}: {way} makes one")


def numeric_columns(df: pd.DataFrame, columns: Sequence[Any], what: str) -> np.ndarray:
    """Columns of numbers, in the order given, (n, k) in float64.

    Args:
        df: the table; other columns do not matter.
        columns: names.
        what: the table is, for messages.

    Raises:
        UserError: for a column that is not there, twice there, lacks values or holds no numbers.
    """
    read = []
    for name in columns:
        if name not in df.columns:
            raise UserError(f"{what} lacks column {name!r}; it has {', '.join(map(repr, df.columns[:8]))}")
        column = df[name]
        if column.ndim > 1:
            raise UserError(f"{what} has two columns of the name {name!r}: rename or drop one")
        check_column(column, name)
        read.append(column.to_numpy(dtype=np.float64))
    return np.stack(read, 1) if read else np.zeros((len(df), 0))


def check_column(column: pd.Series, name: Any) -> None:
    """Refuses an input column that lacks values or holds no numbers.

    Raises:
        UserError: with the column's name and what to do.
    """
    _check_missing(column, name)
    kind = column.dtype.kind
    if kind not in "biuf":
        first = column.iloc[0] if len(column) else None
        way = "encode it first (for example with pandas.get_dummies)"
        if kind in "Mm":
            way = "make it numbers first, such as days since a first date"
        elif kind == "c":
            way = "give real and imaginary parts as two columns"
        elif isinstance(first, Decimal):
            way = f"df[{name!r}].astype(float) makes numbers of Decimal"
        elif isinstance(first, str) and _reads_as_number(first):
            way = f"it has text such as {first!r}, of which pandas.to_numeric makes numbers"
        raise UserError(f"column {name!r} holds no numbers; {way}")
    if kind == "f" and not (finite := np.isfinite(column.to_numpy(dtype=np.float64))).all():
        raise UserError(f"column {name!r} holds {int((~finite).sum())} infinite values: correct or drop these rows")


def _check_missing(column: pd.Series, name: Any) -> None:
    missing = int(column.isna().sum())
    if missing:
        raise UserError(f"column {name!r} has {missing} missing value{'s' * (missing != 1)}: fill or drop these rows")


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def frame_arrays(
    df: pd.DataFrame, client: str, y: str, x: Sequence[str], task: Task | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Task, list[str]]:
    """Inputs, response, client column, task and the labels' names of a table, checked."""
    check_table(df)
    if isinstance(x, str):
        raise UserError(f"x is a list of columns: x=[{x!r}]")
    if not df.columns.is_unique:
        raise UserError("the table has two columns of one name")
    for column in (client, y, *x):
        if column not in df.columns:
            raise unknown("column", column, map(str, df.columns))
        _check_missing(df[column], column)
    refuse_text(df, [*x, y])
    warn_of_codes(df, [*x, y])
    if not len(x):
        raise UserError("a federation needs at least one input column")
    inputs = numeric_columns(df, list(x), "the table")
    response, task, labels = targets_and_labels(df[y], task, f"column {y!r}")
    who = client_names(df[client], f"column {client!r}")
    if y in x:
        raise UserError(f"column {y!r} is the response, and cannot be an input too: leave it out of x")
    return inputs, response if labels else response.astype(np.float64), who, task, labels
