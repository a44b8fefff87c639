"""Text in frames that may be numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .disguise import refuse_disguise
from .options import Reading
from .read import is_text
from .remedies import FRAME

if TYPE_CHECKING:
    import pandas as pd


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
