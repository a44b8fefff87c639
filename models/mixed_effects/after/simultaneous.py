"""Intervals and p values that hold for several contrasts together.

The largest of |t_1|, ..., |t_m| under a multivariate t: with t = r A u / s, u uniform on the sphere of R^d, d the rank
of the correlations A A^T, r^2 chi-squared(d) and s^2 chi-squared(df) / df,

    P(max |t| < c) = E_u F(c^2 / (d h(u)^2); d, df),    h(u) = max |A u|,

F the distribution function of Fisher's F: one integral over directions, smooth in c, whether the correlations are
singular or not (the spherical radial transform; Genz and Bretz, 2009, section 4.1).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from scipy import optimize, stats
from scipy.stats import qmc

from hierfl.errors import UserError, unknown

#: which interval: "auto" is Tukey's of all pairs, else the multivariate t's
Adjust = Literal["auto", "tukey", "mvt", "bonferroni", "none"]
#: directions of the integral, a power of two, and their seed
DIRECTIONS, SEED = 2**14, 20
#: an eigenvalue of the correlations below this share of the largest is none
NO_RANK = 1e-10


class Together:
    """Contrasts that are judged together, m of them.

    Args:
        adjust: by which distribution.
        covariance: of their estimates, (m, m).
        df: their degrees of freedom, (m,), infinite for a normal.
        means: how many means they compare, for Tukey's; 0 for contrasts that are not all pairs.

    Raises:
        UserError: for an unknown one, or Tukey's of others than all pairs.
    """

    def __init__(self, adjust: Adjust, covariance: np.ndarray, df: np.ndarray, means: int = 0) -> None:
        if adjust not in get_args(Adjust):
            raise unknown("adjust", adjust, get_args(Adjust))
        if adjust == "tukey" and not means:
            raise UserError("adjust='tukey' is of all pairs: kind='pairwise'")
        self.adjust = ("tukey" if means else "mvt") if adjust == "auto" else adjust
        self.df, self.means, self.m = np.asarray(df, dtype=float), means, len(df)
        if self.m == 1:
            self.adjust = "none"
        if self.adjust == "mvt":
            self.largest = _largest(covariance)

    def critical(self, level: float) -> np.ndarray:
        """The quantiles by which standard errors are multiplied, (m,)."""
        if self.adjust == "tukey":
            return _each(self.df, lambda df: stats.studentized_range.ppf(level, self.means, df) / np.sqrt(2))
        if self.adjust == "mvt":
            df, first = self._fewest, _t((1 + level) / 2, self._fewest)
            last = _t(1 - (1 - level) / (2 * self.m), df)
            if self._below(first, df) >= level:
                return np.full(self.m, first)
            return np.full(self.m, optimize.brentq(lambda c: self._below(c, df) - level, first, last * 1.01))
        many = self.m if self.adjust == "bonferroni" else 1
        return np.array([_t(1 - (1 - level) / (2 * many), df) for df in self.df])

    def p(self, statistic: np.ndarray) -> np.ndarray:
        """Adjusted p values of statistics (m,), on both sides."""
        size = np.abs(statistic)
        if self.adjust == "tukey":
            q = zip(size * np.sqrt(2), self.df, strict=True)
            return np.array(
                [stats.studentized_range.sf(size_of_statistic, self.means, df) for size_of_statistic, df in q]
            )
        if self.adjust == "mvt":
            return np.array(
                [
                    1 - self._below(size_of_statistic, self._fewest) if np.isfinite(size_of_statistic) else np.nan
                    for size_of_statistic in size
                ]
            )
        alone = np.array(
            [2 * _upper(size_of_statistic, df) for size_of_statistic, df in zip(size, self.df, strict=True)]
        )
        return np.minimum(1.0, alone * self.m) if self.adjust == "bonferroni" else alone

    @property
    def _fewest(self) -> float:
        """A multivariate t has one number of degrees of freedom: the fewest."""
        return float(self.df.min())

    def _below(self, c: float, df: float) -> float:
        """P(max |t| < c)."""
        rank, h = self.largest
        square = c**2 / h**2
        values = stats.f.cdf(square / rank, rank, df) if np.isfinite(df) else stats.chi2.cdf(square, rank)
        return float(values.mean())


def _largest(covariance: np.ndarray) -> tuple[int, np.ndarray]:
    """The rank d of correlations, and h(u) at directions of R^d."""
    unit = np.sqrt(covariance.diagonal())
    values, vectors = np.linalg.eigh(covariance / unit / unit[:, None])
    kept = values > NO_RANK * values[-1]
    root, rank = vectors[:, kept] * np.sqrt(values[kept]), int(kept.sum())
    if rank == 1:
        return 1, np.abs(root).max(0)
    uniform = qmc.Sobol(rank, seed=SEED).random(DIRECTIONS)
    z = stats.norm.ppf(uniform.clip(1e-12, 1 - 1e-12))
    return rank, np.abs(z / np.linalg.norm(z, axis=1, keepdims=True) @ root.T).max(1)


def _t(share: float, df: float) -> float:
    return float(stats.t.ppf(share, df) if np.isfinite(df) else stats.norm.ppf(share))


def _upper(size: float, df: float) -> float:
    return float(stats.t.sf(size, df) if np.isfinite(df) else stats.norm.sf(size))


def _each(df: np.ndarray, quantile) -> np.ndarray:  # type: ignore[no-untyped-def]
    """A quantile for each number of degrees of freedom, searched once for equal ones."""
    quantiles = {degrees: float(quantile(degrees)) for degrees in np.unique(df)}
    return np.array([quantiles[degrees] for degrees in df])
