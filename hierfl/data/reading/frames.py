"""Text in frames that may be numbers, and numbers that may be missing values."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from .compact_dates import compact_dates, numbers_of_time
from .disguise import refuse_disguise
from .missing_words import SENTINELS, sentinel
from .options import Reading
from .quantities import quantity_note
from .read import CHECKED, is_text
from .remedies import FRAME

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")


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
            rows = [k for k, present in enumerate(df[name].notna()) if present]
            cells = df[name].iloc[rows].tolist()
            refuse_disguise(name, cells, rows, Reading(), FRAME, words=False)


def note_quantities(df: pd.DataFrame, names: Collection[str]) -> None:
    """Writes a line for each column of text that looks like quantities, or whose levels have an order of their own.

    What :func:`.read.read_table` has read is checked or declared already, and so is a pandas Categorical.

    Args:
        df: the table.
        names: columns that are used as categories; those that the table lacks are left to others.
    """
    for name in sorted(set(names) - set(df.attrs.get(CHECKED, ()))):
        if name not in df.columns or not is_text(df[name]):
            continue
        note = quantity_note(name, Counter(df[name].dropna().tolist()), FRAME)
        if note is not None:
            log.warning("%s", note)


def possible_codes(df: pd.DataFrame, names: Collection[str]) -> list[str]:
    """A sentence for each column of numbers that are dates, or of which one may be a code for missing values, as -999.

    What :func:`.read.read_table` has read is checked or declared already.

    Args:
        df: the table.
        names: columns that are used; those that are not there are left to others.
    """
    result = []
    for name in sorted(set(names) - set(df.attrs.get(CHECKED, ()))):
        if name not in df.columns or (column := df[name]).ndim > 1 or getattr(column.dtype, "kind", "O") not in "iuf":
            continue
        numbers = dict.fromkeys(column.dropna().to_numpy().tolist())
        if first := compact_dates(numbers):
            result.append(
                f"column {name!r} holds dates as numbers, {first}, whose differences are no times: df = "
                f"hierfl.read_table(df, types={{{name!r}: 'date'}}) reads them"
            )
        elif kind := numbers_of_time(numbers):
            result.append(
                f"column {name!r} holds {kind[0]}: write {kind[1]}, or df = hierfl.read_table(df, types={{{name!r}: "
                "'number'}) if it is a number"
            )
        if code := code_among(column.dropna().to_numpy()):
            result.append(
                f"column {name!r} {code[0]}: df = hierfl.read_table(df, na=['{code[1]:g}']) if it is a missing "
                f"value, or hierfl.read_table(df, types={{{name!r}: 'number'}}) if it is a number"
            )
    return result


def warn_of_codes(df: pd.DataFrame, names: Collection[str]) -> list[str]:
    """Warns of what :func:`possible_codes` finds, and gives it back."""
    result = possible_codes(df, names)
    for line in result:
        log.warning("%s", line)
    return result


def code_among(numbers: np.ndarray) -> tuple[str, float] | None:
    """What looks like a code for missing values among numbers (n,), in words and itself; None without one."""
    if not np.isin(numbers, SENTINELS).any() or (code := sentinel(set(numbers.tolist()))) is None:
        return None
    others = numbers[numbers != code]
    count = int((numbers == code).sum())
    rows = f"{count} row{'s' * (count > 1)}"
    return f"holds {code:g} in {rows}, and all others lie from {others.min():g} to {others.max():g}", code
