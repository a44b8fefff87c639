"""A table's columns as a network's inputs: numbers as they are, of a category 0 and 1 for each of its levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .column_table import levels_of
from .frames import check_present, numeric_columns

if TYPE_CHECKING:
    import pandas as pd

#: names of the levels of each column that is a category
Levels = Mapping[str, Sequence[str]]


def category_levels(df: pd.DataFrame, columns: Sequence[Any]) -> dict[Any, list[str]]:
    """Levels of those columns that are text, sorted, or a pandas Categorical, in its order: {column: levels}.

    Args:
        df: the table.
        columns: the inputs.
    """
    levels = {name: levels_of(df[name]) for name in columns}
    return {name: list(names) for name, names in levels.items() if names is not None}


def truth_columns(df: pd.DataFrame, columns: Sequence[Any]) -> list[Any]:
    """Which of these columns hold True and False.

    Args:
        df: the table, without missing values in them.
        columns: the inputs.
    """
    return [name for name in columns if _is_truth(df[name])]


def _is_truth(column: pd.Series) -> bool:
    return column.dtype.kind == "b" or (column.dtype.kind == "O" and set(map(type, column)) <= {bool, np.bool_})


def check_truths(df: pd.DataFrame, names: Sequence[Any]) -> None:
    """Refuses new rows with numbers that are neither True nor False, nor a share between them.

    Args:
        df: the table.
        names: the columns of True and False of the fit.

    Raises:
        UserError: for other numbers, such as 1 and 2, and for text.
    """
    for name in names:
        column = df[name] if name in df.columns else None
        if column is None or column.ndim > 1 or column.dtype.kind == "b":
            continue
        if column.dtype.kind in "iuf" and not (outside := column[(column < 0) | (column > 1)]).empty:
            raise UserError(
                f"column {name!r} holds {outside.iloc[0]:g}, and True and False in the fit: 1 is True, and 0 is False"
            )
        if words := [value for value in column.tolist() if isinstance(value, str)]:
            raise UserError(
                f"column {name!r} holds text such as {words[0]!r}, and True and False in the fit: write these, or 1 "
                "and 0"
            )


def input_names(columns: Sequence[Any], levels: Levels) -> list[str]:
    """Names of a network's inputs, in their order: ``age``, ``arm=drug``, ``arm=placebo``.

    Args:
        columns: of the table.
        levels: of those that are categories.
    """
    return [name for column in columns for name in _names(column, levels)]


def encoded_columns(df: pd.DataFrame, columns: Sequence[Any], levels: Levels, what: str) -> np.ndarray:
    """A table's columns as a network's inputs, (n, inputs) in float64, in the order of :func:`input_names`.

    Args:
        df: the table; other columns, and their order, do not matter.
        columns: the inputs.
        levels: of those that are categories.
        what: the table is, for messages.

    Raises:
        UserError: for a column that is not there, lacks values or holds no numbers, and for an unknown level.
    """
    if not levels:
        return numeric_columns(df, columns, what)
    parts = [
        _indicators(df, name, levels[name], what) if name in levels else numeric_columns(df, [name], what)
        for name in columns
    ]
    return np.concatenate(parts, 1) if parts else np.zeros((len(df), 0))


def _names(column: Any, levels: Levels) -> list[str]:
    return [f"{column}={level}" for level in levels[column]] if column in levels else [str(column)]


def _indicators(df: pd.DataFrame, name: Any, levels: Sequence[str], what: str) -> np.ndarray:
    """(n, levels): 1 where a row has the level."""
    column = check_present(df, name, what)
    given = column.astype(str).to_numpy()
    if strange := sorted(set(given.tolist()) - set(levels)):
        names = ", ".join(levels[:8]) + ", ..." * (len(levels) > 8)
        raise UserError(f"column {name!r} holds {strange[0]!r}, a level that the training rows lack; known: {names}")
    return (given[:, None] == np.array(levels)[None]).astype(np.float64)
