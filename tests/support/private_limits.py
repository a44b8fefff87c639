"""How often an interval of a spread holds the truth where sites' effects are seen with a known error: no privacy in it.

    python tests/support/private_limits.py

Ten sites' effects are N(m, t^2), each seen with a normal error of one. Intervals are those of
:mod:`hierfl.models.mixed_effects.report.intervals`, of the density that draws are from. Shares are exact, by quantiles
of the sum of squares.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from hierfl.models.mixed_effects.report.intervals import belonging
from hierfl.models.mixed_effects.search.priors import MEAN, SHAPE

SITES, LEVEL = 10, 0.9
#: the response's spread over the error of one site's effect, about as it is at epsilon 4
SPREAD = 3.0


def misses(spread: float, cases: int = 400) -> tuple[float, float]:
    """Shares of intervals above and below the truth, of a spread in units of the error."""
    df, x = SITES - 1, np.linspace(1e-4, 8, 4001)

    def log_likelihood(square: float | np.ndarray, sum_of_squares: float) -> float | np.ndarray:
        return -df / 2 * np.log1p(square) - sum_of_squares / 2 / (1 + square)

    above = below = 0
    for quantile in stats.chi2.ppf((np.arange(cases) + 0.5) / cases, df):
        seen = quantile * (1 + spread**2)
        best = max(0.0, seen / df - 1)
        height = log_likelihood(x**2, seen) + (SHAPE - 1) * np.log(x) - SHAPE / (MEAN * SPREAD) * x
        share = np.exp(height - height.max()).cumsum()
        limits = x[np.searchsorted(share / share[-1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])]
        statistic = 2 * (log_likelihood(best, seen) - log_likelihood(0.0, seen))
        p = 0.5 * stats.chi2.sf(statistic, 1) + 0.5 * (statistic <= 0)
        end = 0.0 if best == 0 else None
        lower, upper = belonging("sd(x)", limits, np.sqrt(best), np.nan, end, p, LEVEL)
        above, below = above + (lower > spread), below + (upper < spread)
    return above / cases, below / cases


def main() -> None:
    """See the module."""
    for spread in (0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0):
        above, below = misses(spread)
        print(f"{spread:g}: covers {1 - above - below:.3f}, above the truth {above:.3f}, below {below:.3f}")


if __name__ == "__main__":
    main()
