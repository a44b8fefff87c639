"""Estimated marginal means and their contrasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch

from hierfl.data.formula.design import Columns
from hierfl.data.formula.reader import Reader
from hierfl.data.formula.transformed import transformed_response
from hierfl.errors import UserError, unknown

from ..report.coefficients import LEAST_DF
from .coefficients import Coefficients
from .grid import At, Marginal, marginal
from .simultaneous import Adjust, Together

if TYPE_CHECKING:
    import pandas as pd

#: of the linear predictor, or of the response
Scale = Literal["link", "response"]
#: all pairs of levels, or each level beside the first
Kind = Literal["pairwise", "trt.vs.ctrl"]


@dataclass(frozen=True)
class Asked:
    """How means are asked for.

    Attributes:
        names: of the predictors.
        by: those within whose levels there are contrasts, and intervals hold together.
        at: where other predictors are.
        scale: of the linear predictor, or of the response.
        level: of the intervals.
        adjust: whether intervals hold together.
    """

    names: Sequence[str]
    by: Sequence[str]
    at: At
    scale: Scale
    level: float
    adjust: Adjust

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise unknown("scale", self.scale, get_args(Scale))


def marginal_means(reader: Reader, coefficients: Coefficients, asked: Asked) -> pd.DataFrame:
    """See :meth:`.answers.AfterFit.means`."""
    for basis in reader.smooths.values():  # contrasts are without it: it is the same on both sides
        raise UserError(
            f"means are of fixed effects, and {basis.smooth.label} is beside them: contrasts are without it, "
            "and predict(df, level='population') has both"
        )
    if asked.scale == "response":
        _check_units(reader, coefficients)
    means = marginal(reader, coefficients, [*asked.by, *asked.names], asked.at)
    change = _response_mean(coefficients) if asked.scale == "response" else _same
    table = means.labels[[*asked.names, *asked.by]].copy()
    columns = ("mean", "standard_error", "df", "lower", "upper")
    numbers = np.full((len(table), len(columns)), np.nan)
    for rows in _within(means.labels, asked.by):
        numbers[rows] = _intervals(coefficients, means.contrast[rows], means.offset[rows], asked, change, 0)[
            :, [0, 1, 2, 5, 6]
        ]
    table[list(columns)] = numbers
    table.attrs["at"] = means.at
    return table


def contrasts(reader: Reader, coefficients: Coefficients, asked: Asked, kind: Kind) -> pd.DataFrame:
    """See :meth:`.answers.AfterFit.contrast`."""
    import pandas as pd

    if kind not in get_args(Kind):
        raise unknown("kind of contrast", kind, get_args(Kind))
    ratio = asked.scale == "response" and bool(coefficients.method.response_family.ratio)
    if asked.scale == "response" and not ratio:
        _check_units(reader, coefficients)
        _response_mean(coefficients)  # which some responses do not have
    marginal_means_of_rows = marginal(reader, coefficients, [*asked.by, *asked.names], asked.at)
    parts = []
    for rows in _within(marginal_means_of_rows.labels, asked.by):
        words, weights = _compared(marginal_means_of_rows, rows, asked.names, kind, " / " if ratio else " - ")
        means = len(rows) if kind == "pairwise" else 0
        offset = weights @ marginal_means_of_rows.offset[rows]
        # A mean that is not known leaves the contrasts without it.
        contrast = np.stack([_added(row, marginal_means_of_rows.contrast[rows]) for row in weights])
        numbers = _intervals(coefficients, contrast, offset, asked, _exp if ratio else _same, means)
        table = pd.DataFrame({"contrast": words})
        for name in asked.by:
            table[name] = marginal_means_of_rows.labels[name].iloc[rows[0]]
        table[["ratio" if ratio else "estimate", "standard_error", "df", "statistic", "p", "lower", "upper"]] = numbers
        parts.append(table)
    every = pd.concat(parts, ignore_index=True)
    every.attrs["at"] = marginal_means_of_rows.at
    return every


def _added(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The sum of rows by weights of which most are zero; of rows that are not known with none."""
    used = weights != 0
    return np.asarray(weights[used] @ rows[used])


def _within(labels: pd.DataFrame, by: Sequence[str]) -> list[np.ndarray]:
    """Rows of each combination of levels within which means are compared."""
    if not by:
        return [np.arange(len(labels))]
    return [np.asarray(rows) for rows in labels.groupby(list(by), sort=False).indices.values()]


def _compared(
    means: Marginal, rows: np.ndarray, names: Sequence[str], kind: Kind, sign: str
) -> tuple[list[str], np.ndarray]:
    """What is compared, and weights (m, rows)."""
    levels = means.labels[list(names)].iloc[rows].astype(str).agg(" ".join, axis=1).tolist()
    if len(levels) < 2:
        raise UserError(f"{' and '.join(names)} has one level here: a contrast is of two")
    pairs = list(combinations(range(len(levels)), 2)) if kind == "pairwise" else [(k, 0) for k in range(1, len(levels))]
    weights = np.zeros((len(pairs), len(levels)))
    for row, (first, other) in zip(weights, pairs, strict=True):
        row[first], row[other] = 1.0, -1.0
    return [f"{levels[first]}{sign}{levels[other]}" for first, other in pairs], weights


def _intervals(
    coefficients: Coefficients, contrast: np.ndarray, offset: np.ndarray, asked: Asked, change: Change, means: int
) -> np.ndarray:
    """Value, standard error, df, statistic, p, lower and upper of contrasts (m, r), (m, 7); not numbers of those that
    are not known. Together, those that are.
    """
    numbers = np.full((len(contrast), 7), np.nan)
    estimable = np.isfinite(contrast).all(1)
    estimable[estimable] = np.isfinite(coefficients.of_contrasts(contrast[estimable])[1].diagonal())
    if not estimable.any():
        return numbers
    contrast, offset = contrast[estimable], offset[estimable]
    if coefficients.draws is not None:
        numbers[estimable] = _of_draws(coefficients.draws @ contrast.T + offset, asked, change)
        return numbers
    values, covariance = coefficients.of_contrasts(contrast)
    df = coefficients.df(contrast)
    error = np.where(df < LEAST_DF, np.nan, np.sqrt(covariance.diagonal()))
    together = Together(asked.adjust, covariance, df, means)
    reach = together.critical(asked.level) * error
    statistic = values / error
    ends = np.sort([change(values + offset + side * reach)[0] for side in (-1, 1)], axis=0)
    value, slope = change(values + offset)
    p = together.p(statistic)
    numbers[estimable] = np.column_stack([value, np.abs(slope) * error, df, statistic, p, *ends])
    return numbers


def _of_draws(drawn: np.ndarray, asked: Asked, change: Change) -> np.ndarray:
    """The same of a posterior's draws (D, m): means, standard deviations, quantiles, each by itself."""
    if asked.adjust not in ("auto", "none"):
        raise UserError("intervals of a posterior hold each by itself: adjust='none'")
    values = change(drawn)[0]
    tail = (1 - asked.level) / 2
    empty = np.full(drawn.shape[1], np.nan)
    ends = np.quantile(values, [tail, 1 - tail], axis=0)
    return np.column_stack([values.mean(0), values.std(0, ddof=1), empty, empty, empty, *ends])


# -- scales -----------------------------------------------------------------------------------------------------------

#: of the linear predictor: values, and their derivatives
Change = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _same(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return eta, np.ones_like(eta)


def _exp(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.exp(eta), np.exp(eta)


def _check_units(reader: Reader, coefficients: Coefficients) -> None:
    """Refuses the response's scale where the formula transforms the response: its own units are not known here."""
    if response := transformed_response(reader.formula, coefficients.method.response_family.name):
        raise UserError(
            f"the response is {response}, so that means are in its units, and scale='response' would not change them: "
            "scale='link', and the inverse of the numbers"
        )


def _response_mean(coefficients: Coefficients) -> Change:
    """The mean of a response whose random effects are zero, of one trial; the response's own numbers are as estimated.

    Raises:
        UserError: for levels in an order, whose thresholds are in no coefficient.
    """
    method, estimates = coefficients.method, coefficients.estimates
    family = method.response_family
    if family.ordered:
        raise UserError(
            "means of levels in an order are on the scale of the linear predictor, around the thresholds: "
            "predict(df, level='population') has the levels' probabilities"
        )
    if "zero_inflation" in method.network.own or (method.network.own and family.name == "lognormal"):
        raise UserError(
            "the mean of a response depends on its formula of "
            f"{next(iter(method.network.own))}, over which means are not taken: scale='link', or predict(df)"
        )
    own = family.for_means({name: estimates[name] for name in family.starts})

    def change(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = torch.as_tensor(eta, dtype=torch.float64).requires_grad_(True)
        unit = torch.ones(())
        rows = Columns(at.detach()[..., None], at.detach()[..., None], trials=unit, known=unit, event=unit)
        mean = family.mean_of(family.distribution(at, own, rows))
        (slope,) = torch.autograd.grad(mean.sum(), at)
        return mean.detach().numpy(), slope.numpy()

    return change
