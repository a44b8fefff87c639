"""Rows of one patient that count: what one patient can change in a sum is then bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from .column_names import one_column

if TYPE_CHECKING:
    import pandas as pd


def within_cap(df: pd.DataFrame, columns: Sequence[str], most: int) -> np.ndarray:
    """Which rows count: of each patient the first ``most``, in the order of the table; (n,) booleans.

    Whether a row counts depends on its own patient's rows alone: another patient more or less changes nothing.

    Args:
        df: the rows.
        columns: whose values together name a patient, such as site and number.
        most: rows of one patient that count, at least 1.

    Raises:
        UserError: for a column that is not there, or lacks values.
    """
    for name in columns:
        if name not in df.columns:
            raise UserError(f"the table has no column {name!r}, which names the patients")
        if missing := int(one_column(df, name).isna().sum()):
            raise UserError(f"column {name!r} names the patients, and lacks {missing} of its {len(df)} values")
    named = df[list(columns)].astype(str)
    return (named.groupby(list(columns), sort=False).cumcount() < most).to_numpy()


def beyond_words(left_out: int, column: str, most: int) -> str:
    """What is said of rows that do not count."""
    rows = "row is" if left_out == 1 else "rows are"
    counts = "the first row counts" if most == 1 else f"the first {most} rows count"
    return f"{left_out} {rows} left out: of each patient (column {column}) {counts}"
