"""Rows that lack a value which the model uses."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from ...errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from .parsed import Formula

#: what becomes of a row that lacks a value: the table is refused, or the row is left out, and said to be
Missing = Literal["refuse", "drop"]


def lacks_values(name: str, count: int) -> UserError:
    """What is said of new rows that lack values of a column."""
    return UserError(
        f"column {name!r} has {count} missing value{'s' * (count != 1)}: a row to predict needs it; fill it in, or "
        f"leave such rows out, as df.dropna(subset=[{name!r}]) does in Python"
    )


def whole_rows(df: pd.DataFrame, names: Collection[str]) -> pd.Series:
    """Returns whether each row has all values of these columns (of those that are there)."""
    return df[[name for name in names if name in df.columns]].notna().all(axis=1)


def without_missing(
    df: pd.DataFrame, terms: Formula, unit: str, more: Collection[str]
) -> tuple[pd.DataFrame, dict[str, int]]:
    """The table without rows that lack a value, and how many of each client were left out.

    A row that lacks its client stays, and is refused: whose it is no one knows.

    Args:
        df: the table.
        terms: of the formula.
        unit: the clients' column.
        more: columns that the formula does not name.

    Raises:
        UserError: where no row is left.
    """
    kept = whole_rows(df, (terms.columns | set(more)) - {unit})
    if not kept.any():
        raise UserError("every row lacks a value of a column that is used: none would be left")
    lost = df.loc[~kept, unit].astype(str).value_counts() if unit in df.columns else {}
    return df[kept], {str(name): int(count) for name, count in sorted(lost.items())}
