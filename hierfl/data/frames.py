"""Columns of a table as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError

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
        column = check_present(df, name, what)
        check_column(column, name)
        read.append(column.to_numpy(dtype=np.float64))
    return np.stack(read, 1) if read else np.zeros((len(df), 0))


def check_present(df: pd.DataFrame, name: Any, what: str) -> pd.Series:
    """A column that a table has once and without missing values.

    Args:
        df: the table.
        name: of the column.
        what: the table is, for messages.

    Raises:
        UserError: for another column.
    """
    if name not in df.columns:
        raise UserError(f"{what} lacks column {name!r}; it has {', '.join(map(repr, df.columns[:8]))}")
    column = df[name]
    if column.ndim > 1:
        raise UserError(f"{what} has two columns of the name {name!r}: rename or drop one")
    _check_missing(column, name)
    return column


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
        elif (word := _word_among_numbers(column)) is not None:
            row, text = word
            raise UserError(
                f"column {name!r} holds numbers, but also {text!r} (row {row!r}): correct that value, or make it "
                "missing and drop its row"
            )
        elif isinstance(first, str) and _reads_as_number(first):
            way = f"it has text such as {first!r}, of which pandas.to_numeric makes numbers"
        raise UserError(f"column {name!r} holds no numbers; {way}")
    if kind == "f" and not (finite := np.isfinite(column.to_numpy(dtype=np.float64))).all():
        raise UserError(f"column {name!r} holds {int((~finite).sum())} infinite values: correct or drop these rows")


def _check_missing(column: pd.Series, name: Any) -> None:
    missing = int(column.isna().sum())
    if missing:
        raise UserError(f"column {name!r} has {missing} missing value{'s' * (missing != 1)}: fill or drop these rows")


def _word_among_numbers(column: pd.Series) -> tuple[Any, str] | None:
    """The first word of a column that holds numbers too, and the label of its row."""
    words = [isinstance(value, str) and not _reads_as_number(value) for value in column]
    if not any(words) or all(words):
        return None
    position = words.index(True)
    return column.index[position], str(column.iloc[position])


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
