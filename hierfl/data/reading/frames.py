"""Text in frames that may be numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .disguise import refuse_disguise
from .missing_words import sentinel
from .options import Reading
from .read import is_text
from .remedies import FRAME

if TYPE_CHECKING:
    import pandas as pd


def possible_codes(df: pd.DataFrame, names: Collection[str]) -> list[str]:
    """A sentence for each column of numbers among which one may be a code for missing values, such as -999.

    Args:
        df: the table.
        names: columns that are used; those that are not there, or hold no numbers, are passed over.
    """
    result = []
    for name in sorted(set(names) & set(df.columns)):
        if getattr(df[name].dtype, "kind", "O") not in "iuf":
            continue
        numbers = df[name].dropna()
        code = sentinel(set(numbers.tolist()))
        if code is not None:
            others, count = numbers[numbers != code], int((numbers == code).sum())
            result.append(
                f"column {name!r} holds {code:g} in {count} row{'s' * (count > 1)}, and all others lie from "
                f"{others.min():g} to {others.max():g}: if it is a missing value, df[{name!r}] = "
                f"df[{name!r}].mask(df[{name!r}] == {code:g}), and na='drop'"
            )
    return result


def refuse_text(df: pd.DataFrame, names: Collection[str]) -> None:
    """Refuses columns of text that are not declared to be categories and may be numbers.

    A pandas Categorical is declared, and so are truth values and numbers.

    Args:
        df: the table.
        names: columns that are used; those that are not there are left to others.

    Raises:
        UserError: with three entries of the first such column, and what reads them.
    """
    for name in sorted(set(names)):
        if name in df.columns and is_text(df[name]):
            there = [k for k, known in enumerate(df[name].notna()) if known]
            cells = df[name].iloc[there].tolist()
            refuse_disguise(name, cells, there, Reading(), FRAME, words=False)
