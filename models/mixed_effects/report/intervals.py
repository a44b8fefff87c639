"""Intervals that belong to their estimates: of standard deviations, correlations and a family's own numbers.

The density that draws are from keeps standard deviations off zero, and correlations off one. A quantile of draws is
therefore a limit only where the likelihood agrees. A standard deviation's lower limit is zero where a likelihood-ratio
test at the interval's level does not reject that. An interval goes to the bound that its estimate is at. Where the
estimate lies outside the quantiles, the limit on that side is Wald's, of log sd, atanh r, log or logit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats
from torch import Tensor

from hierfl.data.formula.parsed import OWN_FORMULAS
from hierfl.inference.state import State

from ..model.equations import MixedModel
from ..search.boundary import deviations
from ..search.bounds import Bound

if TYPE_CHECKING:
    import pandas as pd


def boundary_tests(method: MixedModel, estimates: Mapping[str, Tensor]) -> dict[str, float]:
    """p values of the hypotheses that standard deviations are zero, by their labels; without those not known.

    Args:
        method: whose.
        estimates: shared values by their short names; folders of earlier versions have no ``boundary``.
    """
    tests: dict[str, float] = {}
    if "boundary" not in estimates:
        return tests
    for (level, k), value in zip(deviations(method), estimates["boundary"].tolist(), strict=True):
        grouping = method.groupings[level]
        first = np.cumsum([0, *grouping.blocks])
        size = grouping.blocks[int(np.searchsorted(first, k, side="right")) - 1]
        if value >= 0:
            below = float(stats.chi2.sf(value, size - 1)) if size > 1 else float(value <= 0)
            tests[f"sd({grouping.labels[k]})"] = 0.5 * float(stats.chi2.sf(value, size)) + 0.5 * below
    return tests


def belonging(
    label: str, limits: Sequence[float], value: float, error: float, end: float | None, p: float, level: float
) -> list[float]:
    """Lower and upper limit that belong to an estimate; one that is not there stays away.

    Args:
        label: of the effect.
        limits: from draws or a profile.
        value, error: estimate and standard error.
        end: the bound that the estimate is at.
        p: of the hypothesis that a standard deviation is zero.
        level: of the interval.
    """
    ends, reach = [float(limit) for limit in limits], float(stats.norm.ppf((1 + level) / 2))
    if label.startswith("sd(") and p > 1 - level:
        end = 0.0
    if end is not None:
        side = int(end > value or (end == value and end > 0))
        ends[side] = ends[side] if np.isnan(ends[side]) else end
    for side, sign in enumerate((-1.0, 1.0)):
        if sign * (value - ends[side]) > 0:
            ends[side] = _wald(label, value, sign * reach * error)
    return ends


def _wald(label: str, value: float, step: float) -> float:
    """A limit so far from an estimate; the estimate where it has no standard error."""
    if not np.isfinite(step):
        return value
    if label.startswith(("corr(", "rho(")):
        return float(np.tanh(np.arctanh(value) + step / (1 - value**2))) if abs(value) < 1 else value
    if label.startswith("p("):
        odds = value / (1 - value) * np.exp(step / (value * (1 - value)))
        return float(odds / (1 + odds))
    if label.partition(":")[0] in OWN_FORMULAS:
        return value + step
    with np.errstate(over="ignore"):  # of a number of which next to nothing is known
        return float(value * np.exp(step / value)) if value > 0 else value + step


def belong(
    table: pd.DataFrame, method: MixedModel, estimates: State, bounds: Mapping[str, Bound], level: float
) -> None:
    """Intervals that belong to their estimates. A correlation at its bound has no standard error, and one that is not
    defined no estimate.
    """
    # Where a profile ends at zero, the likelihood there is high enough.
    profiled = "profile" in estimates and level == method.settings.profile
    tests = {} if profiled else boundary_tests(method, estimates)
    columns = ["estimate", "standard_error", "lower", "upper"]
    numbers = table[columns].to_numpy(copy=True)
    for row, name in zip(numbers, table["effect"], strict=True):
        bound = bounds.get(name, Bound())
        if not bound.defined:
            row[0] = np.nan
        if name.startswith("corr(") and (bound.end is not None or not bound.defined):
            row[1] = np.nan
        if name.startswith(("sd(", "corr(")) and bound.end is not None:
            row[0] = bound.end  # a climb ends near its bound
        if name not in method.network.fixed:
            row[2:] = belonging(name, row[2:], row[0], row[1], bound.end, tests.get(name, 0.0), level)
    table[columns] = numbers
