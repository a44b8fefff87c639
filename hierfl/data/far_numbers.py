"""Numbers of new rows that are far from those of the fitted rows: another unit, a code, or an extrapolation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
#: standard deviations from the mean of the fitted rows
FAR_STANDARD_DEVIATIONS = 10.0


def spread_of(df: pd.DataFrame, names: Iterable[str]) -> dict[str, list[float]]:
    """Mean and standard deviation of columns of numbers, as json has them.

    Args:
        df: the fitted rows, all of them numbers.
        names: of the columns.
    """
    return {name: [float(df[name].mean()), float(df[name].std(ddof=0))] for name in names}


def sure_decimals(df: pd.DataFrame, spread: Mapping[str, Sequence[float]]) -> set[str]:
    """Columns of new rows whose numbers are like the fitted rows', and would be far from them in thousands.

    Points of such numbers are decimal marks.

    Args:
        df: the new rows, points read as decimal marks.
        spread: mean and standard deviation of the fitted rows' columns, as far as they are known.
    """
    sure = set()
    for name in spread.keys() & set(df.columns):
        mean, sd = spread[name]
        if df[name].dtype.kind == "f" and sd > 0:
            numbers = df[name].dropna().to_numpy()
            near, near_in_thousands = (
                bool((np.abs(factor * numbers - mean) <= FAR_STANDARD_DEVIATIONS * sd).all()) for factor in (1, 1000)
            )
            if near and not near_in_thousands:
                sure.add(name)
    return sure


def warn_of_far(columns: Mapping[str, Any], spread: Mapping[str, Sequence[float]]) -> None:
    """Says which columns of new rows have numbers far from the fitted rows'; the rows are predicted all the same.

    Args:
        columns: of the new rows, (n,) each.
        spread: mean and standard deviation of the fitted rows' columns, as far as they are known.
    """
    for name in sorted(spread.keys() & columns.keys()):
        mean, sd = spread[name]
        numbers = np.asarray(columns[name], dtype=float)
        if not sd > 0 or not len(numbers):
            continue
        distance = np.abs(numbers - mean) / sd
        if np.isclose(sd**2, mean * (1 - mean), rtol=1e-3):  # zeros and ones: a rare one is no far number
            distance[np.isin(numbers, (0, 1))] = 0
        if rows := int((distance > FAR_STANDARD_DEVIATIONS).sum()):
            farthest = int(distance.argmax())
            log.warning(
                "column %r is %g in %s, %.3g standard deviations from the mean of the fitted rows: the prediction "
                "extrapolates, or the column has another unit",
                name, numbers[farthest], "1 row" if rows == 1 else f"one of {rows} rows", distance[farthest],
            )  # fmt: skip
