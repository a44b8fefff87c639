"""Penalised splines of one column, whose penalised part is random effects that all rows share.

Of k cubic B-splines with knots at equal distances (Eilers and Marx, Statistical Science 11:89, 1996) the coefficients g
have the penalty |D g|^2, D their second differences. It is zero for straight lines. So

    sum_m g_m B_m(x) = a + b x + sum_j c_j z_j(x),    z = (D D^T)^-1 D B(x) less a line,    c_j = (D g)_j ~ N(0, sd^2)

with k - 2 effects c (Currie and Durban, Statistical Modelling 2:333, 2002; R's mgcv, ``s(x, bs="ps", m=c(2,2))``). The
straight line is a fixed effect, the curve's least-squares line between the limits: z_j is orthogonal to lines there.
Beyond the limits the curve goes on as a straight line.

Knots are between two limits that the formula says, or mean - 2 sd and mean + 2 sd of all rows: sites say these sums
before a fit, and no knot is a row's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import UserError

#: standard deviations from the mean to a limit
LIMIT_STANDARD_DEVIATIONS = 2.0
#: B-splines, by default, at least and at most
DEFAULT_SPLINES, MIN_SPLINES, MAX_SPLINES = 10, 4, 40
#: smooth terms of a formula, and effects of all of them together: sums are over pairs of these
MOST_SMOOTHS, MOST_EFFECTS = 7, 200
_DEGREE = 3


@dataclass(frozen=True)
class Smooth:
    """A smooth term ``s(x, k=10)``, as a formula says it.

    Attributes:
        column: x.
        k: B-splines.
        limits: of the knots; None for those of the rows' mean and standard deviation.
    """

    column: str
    k: int = DEFAULT_SPLINES
    limits: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        """What it is called."""
        return f"s({self.column})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its effects' columns."""
        return tuple(f"{self.label}.{j + 1}" for j in range(self.k - 2))

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of its effects."""
        return tuple(str(j + 1) for j in range(self.k - 2))

    def basis(self, mean: float, sd: float) -> SmoothBasis:
        """Its columns for a table whose rows have such a mean and standard deviation (dividing by n).

        Raises:
            UserError: for a column that does not vary.
        """
        lower, upper = self.limits or (mean - LIMIT_STANDARD_DEVIATIONS * sd, mean + LIMIT_STANDARD_DEVIATIONS * sd)
        if not sd > 1e-12 * abs(mean) or not upper > lower:
            raise UserError(f"{self.label}: column {self.column!r} does not vary")
        return SmoothBasis(self, float(lower), float(upper))


@dataclass(frozen=True)
class SmoothBasis:
    """A smooth term whose knots are known.

    Attributes:
        smooth: the term.
        lower, upper: limits of the knots, in the column's unit.
    """

    smooth: Smooth
    lower: float
    upper: float

    @property
    def knots(self) -> np.ndarray:
        """All of them, (k + 4,), as mgcv takes them."""
        inside = self.smooth.k - _DEGREE
        step = (self.upper - self.lower) / inside
        return self.lower + step * np.arange(-_DEGREE, inside + _DEGREE + 1)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """z (n, k - 2) of values (n,)."""
        x = np.asarray(x, dtype=float)
        node, weight = np.polynomial.legendre.leggauss(_DEGREE)  # exact: a cubic times a line
        inside = self.smooth.k - _DEGREE
        middle = (np.arange(inside)[:, None] + 0.5 + 0.5 * node).ravel() / inside  # of the limits' 0 to 1
        root = np.sqrt(np.tile(weight, inside))[:, None]
        line = np.column_stack([np.ones(len(middle)), middle])
        span = self.upper - self.lower
        away = np.linalg.lstsq(root * line, root * self._splines(self.lower + span * middle), rcond=None)[0]
        return self._splines(x) - np.column_stack([np.ones(len(x)), (x - self.lower) / span]) @ away

    def _splines(self, x: np.ndarray) -> np.ndarray:
        """The same, each with a straight line of its own."""
        from scipy.interpolate import BSpline

        k = self.smooth.k
        splines = BSpline(self.knots, np.eye(k), _DEGREE)
        within = np.clip(x, self.lower, self.upper)
        b = splines(within) + (x - within)[:, None] * splines.derivative()(within)
        d = np.diff(np.eye(k), 2, axis=0)
        return np.asarray(b @ np.linalg.solve(d @ d.T, d).T)


def smooth_bases(
    smooths: Mapping[str, Smooth], fixed: Sequence[str], numbers: Mapping[str, tuple[float, float]], ordered: bool
) -> dict[str, SmoothBasis]:
    """The columns of smooth terms, by kind of level.

    Args:
        smooths: the terms.
        fixed: names of the fixed columns: the straight lines are among them.
        numbers: of columns that are numbers, mean and standard deviation of all rows (dividing by n).
        ordered: whether thresholds represent the intercept.

    Raises:
        UserError: for fixed columns without a straight line or an intercept.
    """
    from .units import INTERCEPT  # which has torch: formulas are parsed without

    for smooth in smooths.values():
        if smooth.column not in fixed or smooth.column not in numbers:
            raise UserError(f"{smooth.label} is of a column of numbers, which {smooth.column!r} is not")
        if not ordered and not {*INTERCEPT} & {*fixed}:
            raise UserError(f"{smooth.label} needs an intercept beside it: write 1 + {smooth.label}")
    return {kind: term.basis(*map(float, numbers[term.column])) for kind, term in smooths.items()}
