"""Codes for missing values among the numbers of new rows, and the lines that a prediction says beside its answer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.data import tables
from hierfl.data.category_columns import input_names
from hierfl.data.far_numbers import warn_of_far
from hierfl.data.reading.frames import code_among
from hierfl.data.reading.missing_words import SENTINELS
from hierfl.data.reading.options import Reading
from hierfl.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from hierfl.data.federation import Federation

log = logging.getLogger("hierfl")
#: a code of fewer digits is a usual number where nothing lies beside it
LEAST_CODE = 99


def refuse_codes(df: pd.DataFrame, used: Collection[str]) -> None:
    """Refuses rows of a request of which one has a code beside ordinary numbers, as a file of them is refused.

    Args:
        df: the rows.
        used: columns that a prediction uses, as far as they are there.

    Raises:
        UserError: for the first such column.
    """
    for name in sorted(set(used) & set(df.columns)):
        column = df[name]
        if getattr(column.dtype, "kind", "O") in "iuf" and (words := code_among(column.dropna().to_numpy())):
            raise UserError(
                f"column {name!r} {words[0]}: leave such rows out if it is a missing value, or ask for each in a "
                "request of its own if it is a number"
            )


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


def warn_of_codes_at_site(columns: Mapping[str, Any], path: Path, reading: Reading | None) -> None:
    """The same at a site, of the columns of a study for which its dictionary has no range.

    Args:
        columns: of study.toml.
        path: of the new rows, which have been predicted.
        reading: how the file is read; None for nothing said.
    """
    if not tables.is_table_file(str(path)):
        return
    numbers = {name for name, column in columns.items() if column["kind"] in ("number", "whole")}
    plain = replace(reading or Reading(), types={}, order={}, reference={})
    warn_of_codes(
        tables.read(str(path), reading=plain),
        {name for name in numbers if not {"least", "most"} & columns[name].keys()},
    )


def warn_of_far_inputs(federation: Federation, x: Tensor) -> None:
    """Says which columns of a table are far from the fitted rows', of a network that standardises them.

    Args:
        federation: of the run.
        x: raw inputs of the new rows, (n, inputs); others are left alone.
    """
    spread = spread_of_inputs(federation)
    if x.shape[1:] == (len(spread),):
        warn_of_far(dict(zip(spread, x.cpu().numpy().T, strict=True)), spread)


def spread_of_inputs(federation: Federation) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the fitted rows' inputs by name, in their order.

    Args:
        federation: of a run of a table; without scales of its inputs there are none.
    """
    facts = federation.about
    names = input_names(facts.get("columns") or [], facts.get("categories") or {})
    if not names or federation.mean is None or federation.std is None or federation.mean.shape != (len(names),):
        return {}
    units = zip(federation.mean.tolist(), federation.std.tolist(), strict=True)
    return dict(zip(names, units, strict=True))


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
