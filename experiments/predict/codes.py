"""Codes for missing values among the numbers of new rows, and the lines that a prediction says beside its answer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hierfl.data.reading.frames import code_among
from hierfl.data.reading.missing_words import SENTINELS

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
#: a code of fewer digits is a usual number where nothing lies beside it
LEAST_CODE = 99


def warn_of_codes(df: pd.DataFrame, used: Collection[str]) -> None:
    """Says which numbers of new rows may be codes for missing values: a few rows have no others to compare them with.

    Args:
        df: the rows.
        used: columns that a prediction uses, as far as they are there.
    """
    for name in sorted(set(used) & set(df.columns)):
        column = df[name]
        if getattr(column.dtype, "kind", "O") not in "iuf":
            continue
        numbers = column.dropna().to_numpy()
        codes = [code for code in SENTINELS if code <= -LEAST_CODE and (numbers == code).any()]
        words = code_among(numbers) if len(numbers) else None
        code = words[1] if words else codes[0] if codes and not ((numbers < 0) & (numbers != codes[0])).any() else None
        if code is not None:
            rows = int((numbers == code).sum())
            log.warning(
                "column %r is %g in %d row%s, which may be a missing value: it is predicted as a number",
                name, code, rows, "s" * (rows > 1),
            )  # fmt: skip


@contextmanager
def warnings_kept() -> Iterator[list[str]]:
    """The lines of warnings that are logged inside."""
    lines: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Keeps(logging.WARNING)
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
