"""What ranks say: coverage of intervals, and whether ranks are uniform.

Under a right posterior the rank of what was drawn among L independent draws is uniform on 0, ..., L (Talts et al.,
2018). The test is by the ECDF of N ranks at K points z_i (Saeilynoja, Buerkner and Vehtari, 2022):

    gamma = min_i 2 min(P(B_i <= N F(z_i)), P(B_i >= N F(z_i))),    B_i ~ Binomial(N, z_i)

The p-value of gamma, and the simultaneous band, are those of uniform ranks that are simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

#: intervals whose coverage is counted
LEVELS = (0.5, 0.9)
#: points of the ECDF at most, and simulated sets of ranks
POINTS, SIMULATED = 100, 4000
#: probability that no quantity's ECDF leaves its band where the fits are right. One outside is reported.
SURE = 0.95


@dataclass(frozen=True)
class Ranks:
    """Ranks of one quantity.

    Attributes:
        name: of the quantity.
        values: ranks of N replicates among ``draws`` draws, (N,).
        draws: L.
    """

    name: str
    values: np.ndarray
    draws: int

    @property
    def places(self) -> np.ndarray:
        """The posterior quantile at which the truth lies, (N,) in (0, 1)."""
        return (np.asarray(self.values) + 0.5) / (self.draws + 1)

    def coverage(self, level: float) -> tuple[float, float]:
        """The share of central intervals that hold the truth, and its Monte-Carlo standard error."""
        inside = np.abs(self.places - 0.5) < level / 2
        n = len(inside)
        share = float(inside.mean()) if n else math.nan
        return share, math.sqrt(level * (1 - level) / n) if n else math.nan

    @property
    def points(self) -> np.ndarray:
        """z_1, ..., z_K: where the ECDF is looked at; each is a border between two ranks."""
        return points_of(len(self.values), self.draws)

    @property
    def ecdf(self) -> np.ndarray:
        """F at :attr:`points`, (K,)."""
        return np.searchsorted(np.sort(self.places), self.points) / max(1, len(self.values))

    @property
    def p_value(self) -> float:
        """The p-value of the test that the ranks are uniform."""
        n = len(self.values)
        if not n:
            return math.nan
        gamma = _gamma(np.rint(self.ecdf * n).astype(int)[None], n, self.points)[0]
        simulated = _simulated(n, self.draws)
        return float((1 + (simulated <= gamma).sum()) / (1 + len(simulated)))

    @property
    def worst(self) -> str:
        """The main difference of the ranks from uniform ones, in words."""
        n, places = len(self.values), self.places
        moved = (places.mean() - 0.5) * math.sqrt(12 * n)
        spread = (places.var() - 1 / 12) * math.sqrt(180 * n)
        if abs(spread) > abs(moved):
            return "posteriors are too narrow" if spread > 0 else "posteriors are too wide"
        return "posteriors are too low" if moved > 0 else "posteriors are too high"


def points_of(number: int, draws: int) -> np.ndarray:
    """Borders between equally many ranks, at most as many as ranks that were found."""
    most = max(2, min(POINTS, number))
    parts = max((k for k in range(2, most + 1) if (draws + 1) % k == 0), default=most)
    return np.arange(1, parts) / parts


def band(number: int, draws: int, sure: float = SURE) -> tuple[np.ndarray, np.ndarray]:
    """The lower and upper line between which the whole ECDF of uniform ranks lies with this probability, (K,) each."""
    z = points_of(number, draws)
    alpha = float(np.quantile(_simulated(number, draws), 1 - sure))
    return stats.binom.ppf(alpha / 2, number, z) / number, stats.binom.ppf(1 - alpha / 2, number, z) / number


def adjusted(p_values: Sequence[float]) -> list[float]:
    """p-values of several quantities together (Holm, 1979)."""
    order = np.argsort(p_values)
    adjusted_values, least = [1.0] * len(order), 0.0
    for k, at in enumerate(order):
        least = max(least, min(1.0, (len(order) - k) * p_values[at]))
        adjusted_values[at] = least
    return adjusted_values


def _gamma(counts: np.ndarray, number: int, z: np.ndarray) -> np.ndarray:
    """Gamma of the counts below each point (M, K), (M,)."""
    below = stats.binom.cdf(counts, number, z)
    above = stats.binom.sf(counts - 1, number, z)
    return np.asarray((2 * np.minimum(below, above)).min(-1))


@cache
def _simulated(number: int, draws: int) -> np.ndarray:
    """Gamma of sets of uniform ranks."""
    z = points_of(number, draws)
    parts = len(z) + 1
    counts = np.random.default_rng(0).multinomial(number, np.full(parts, 1 / parts), SIMULATED).cumsum(1)[:, :-1]
    return _gamma(counts, number, z)
