"""A reference grid: categories at all of their levels, numbers at their means over all rows.

Marginal means are means over its rows with equal weights for the levels of what is averaged over (Searle, Speed and
Milliken, 1980; the R package emmeans).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.data.formula import gate
from hierfl.data.formula.ambiguous import bare_truths
from hierfl.data.formula.reader import Reader
from hierfl.data.formula.references import levels_of
from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError, unknown

from .coefficients import Coefficients

if TYPE_CHECKING:
    import pandas as pd

#: rows of a grid
MOST_ROWS = 200_000
#: where predictors are to be: a number, a level, or several
At = Mapping[str, Any]


@dataclass(frozen=True)
class Marginal:
    """Marginal means on the scale of the linear predictor, m of them.

    Attributes:
        labels: what each one is of, a column for each category or number, (m, .).
        contrast: of the coefficients, (m, r); not a number where no combination of them is known.
        offset: what is added, (m,).
        at: where predictors that are numbers were put.
    """

    labels: pd.DataFrame
    contrast: np.ndarray
    offset: np.ndarray
    at: dict[str, float]


def marginal(reader: Reader, coefficients: Coefficients, names: Sequence[str], at: At) -> Marginal:
    """The marginal means of each combination of the levels of some predictors.

    Args:
        reader: of the fit.
        coefficients: of the fit.
        names: of the predictors, each with levels or several values in ``at``.
        at: where other predictors, or these, are.

    Raises:
        UserError: for a predictor that is not there, or a number whose mean is not known.
    """
    import pandas as pd

    check_no_truths(reader, "marginal means")
    predictors = sorted(gate.parse(reader.formula).predictors)
    for name in [*names, *at]:
        if name not in predictors:
            raise unknown("predictor", name, predictors)
    if len(set(names)) < len(names):
        raise UserError(f"each predictor is named once, not {', '.join(names)}")
    levels = levels_of(reader)
    values = {name: _values(reader, coefficients, levels, name, at) for name in [*names, *predictors]}
    for name in names:
        if name not in levels and name not in at:
            raise UserError(f"{name!r} is a number: at={{{name!r}: [0, 1]}} says where its means are")
    for smooth in (basis.smooth for basis in reader.smooths.values()):
        if len(values.get(smooth.column, ())) > 1:
            raise UserError(
                f"{smooth.column!r} has a curve, {smooth.label}: predict(df, level='population') has its values"
            )
    if (rows := prod(map(len, values.values()))) > MOST_ROWS:
        raise UserError(f"the grid would have {rows:,} rows: at={{...}} puts some predictors at one value")
    index = pd.MultiIndex.from_product(values.values(), names=values.keys())
    grid = index.to_frame(index=False)
    # Numbers of which the formula makes categories stay what they are.
    grid = grid.astype({name: object for name in grid if isinstance(values[name][0], str)})
    columns, offset = reader.all_fixed(grid)
    averaged_over = prod(len(values[name]) for name in values if name not in names)
    mean = columns.reshape(-1, averaged_over, columns.shape[1]).mean(1)
    kept, estimable = mean, np.ones(mean.shape[:1], dtype=bool)
    if reader.independent is not None:
        estimable = np.asarray(reader.independent.keep_to(mean).all(1))
        kept = mean[:, reader.independent.kept]
    places = [coefficients.method.network.fixed.index(name) for name in coefficients.names]
    contrast = np.where(estimable[:, None], kept[:, places], np.nan)
    added = np.zeros(len(mean)) if offset is None else offset.reshape(-1, averaged_over).mean(1)
    labels = grid[list(names)].iloc[::averaged_over].reset_index(drop=True)
    where = {k: float(v[0]) for k, v in values.items() if k not in levels and k not in names and len(v) == 1}
    return Marginal(labels, contrast, added, where)


def check_no_truths(reader: Reader, what: str) -> None:
    """Refuses what is of categories where True and False are a number.

    Raises:
        UserError: for such a fit.
    """
    if names := bare_truths(reader.read, reader.types.truths):
        raise UserError(
            f"column {names[0]!r} holds True and False, a number in this fit and no category: for {what} write "
            f"factor({names[0]})"
        )


def _values(
    reader: Reader, coefficients: Coefficients, levels: Mapping[str, list[Any]], name: str, at: At
) -> list[Any]:
    """The values at which a predictor is held."""
    if name in at:
        asked = at[name]
        several = isinstance(asked, list | tuple | np.ndarray | range)
        values = list(asked) if several else [asked]
        if not values or len(set(map(str, values))) < len(values):
            raise UserError(f"at={{{name!r}: ...}} is a value or several different ones, not {asked!r}")
        if name in levels:
            if strange := [value for value in values if value not in levels[name]]:
                raise unknown(f"level of {name!r}", strange[0], map(str, levels[name]))
            return values
        if strange := [v for v in values if isinstance(v, bool | str) or not np.isfinite(_number(v))]:
            raise UserError(f"{name!r} is a number, which {strange[0]!r} is not")
        return [float(value) for value in values]
    if name in levels:
        return list(levels[name])
    return [_mean(reader, coefficients, name)]


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _mean(reader: Reader, coefficients: Coefficients, name: str) -> float:
    """The mean of a predictor over all rows: the reader's, where rows are in one place, or the centre of the column's
    unit.

    Raises:
        UserError: where it is not known.
    """
    if name in reader.means:
        return reader.means[name]
    design = coefficients.method.network
    if name in design.fixed and any(intercept in INTERCEPT for intercept in design.fixed):
        return design.fixed_units.centre[design.fixed.index(name)]
    raise UserError(f"the mean of {name!r} over all rows is not known here: at={{{name!r}: 2}} says where it is")
