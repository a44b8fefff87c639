"""Two ways to fit the same clients: who gains, how much, and how sure is it?

Takes frames with a row for each seed and client. A gain is what the first has over the second, with the sign that makes
more of it better, paired by seed and client: what is common to both (how hard the client's data are) drops out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hierfl.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: metrics that should be large; of the others less is better, but for coverage90, which should be 0.9
LARGE = ("accuracy",)
NOMINAL = {"coverage90": 0.9}
METRICS = ("accuracy", "nll", "brier", "ece", "rmse", "crps", "coverage90")


class Estimate(NamedTuple):
    """A mean and its bootstrap interval."""

    mean: float
    low: float
    high: float


def gains(one: pd.DataFrame, two: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """What the first has over the second, for every seed and client that both have test data of.

    Args:
        one, two: columns seed, client, n, n_test and metrics.
        columns: {metric: (its column in the first, its column in the second)}.

    Returns:
        Columns seed, client, n, n_test and a gain for each metric.

    Raises:
        UserError: where the two have other clients, or other numbers of examples, under a seed that both have.
    """
    keys = ["seed", "client", "n", "n_test"]
    common = sorted(set(one["seed"]) & set(two["seed"]))
    parts = [frame[frame["seed"].isin(common)].astype({"client": str}) for frame in (one, two)]
    both = parts[0].merge(parts[1], on=keys, suffixes=("_1", "_2"), validate="one_to_one")
    if not common or len(both) != len(parts[0]) or len(both) != len(parts[1]):
        raise UserError("they have no seed in common" if not common else "their clients have other data")
    found = both[keys].copy()
    for metric, (first, second) in columns.items():
        a, b = (both[f"{name}_{k}" if f"{name}_{k}" in both else name] for k, name in ((1, first), (2, second)))
        if metric in NOMINAL:
            a, b = -(a - NOMINAL[metric]).abs(), -(b - NOMINAL[metric]).abs()
        found[metric] = a - b if metric in LARGE or metric in NOMINAL else b - a
    return found[found["n_test"] > 0].reset_index(drop=True)


def bootstrap(values: np.ndarray, seeds: np.ndarray, clients: np.ndarray | None, times: int = 10_000) -> Estimate:
    """Mean over clients, then over seeds, and its central 95 % over resampled seeds and clients.

    Seeds are drawn first, then clients within each: under another seed a client of the same name has other data. Where
    it has not, clients are drawn once for all seeds. With one seed the interval is of the clients alone.

    A bootstrap of n units shows (n - 1) / n of their variance, and knows nothing of what their standard deviation is
    uncertain by: with few seeds it is far too narrow. So both its ends are moved away from the mean by
    sqrt(n / (n - 1)) t / 1.96, t Student's quantile of n - 1 degrees of freedom (:func:`degrees`; compare Hesterberg,
    The American Statistician 2015, whose correction is of the percentiles).

    Args:
        values: (N,), NaN for no value.
        seeds: (N,), of which seed.
        clients: (N,), of which client, where a name means the same data under every seed; None where it does not.
        times: resamples; the same ones each time.
    """
    there = ~np.isnan(values)
    if not there.any():
        return Estimate(float("nan"), float("nan"), float("nan"))
    rng, (names, seeds) = np.random.default_rng(0), np.unique(seeds[there], return_inverse=True)
    values, chosen = values[there], rng.integers(0, len(names), (times, len(names)))
    if clients is not None:
        people, clients = np.unique(clients[there], return_inverse=True)
        table = np.full((len(names), len(people)), np.nan)
        table[seeds, clients] = values
        who = rng.integers(0, len(people), (times, len(people)))
        mean = np.nanmean(table, 1).mean()
        means = np.take_along_axis(np.stack([np.nanmean(row[who], 1) for row in table], 1), chosen, 1).mean(1)
    else:
        groups, means = [values[seeds == k] for k in range(len(names))], np.zeros(times)
        mean = np.mean([group.mean() for group in groups])
        for slot in chosen.T:
            for k, group in enumerate(groups):
                here = np.flatnonzero(slot == k)
                means[here] += group[rng.integers(0, len(group), (len(here), len(group)))].mean(1) / len(names)
    df = degrees(table) if clients is not None else len(groups) - 1 if len(groups) > 1 else len(groups[0]) - 1
    wider = widening(df)
    low, high = (mean + wider * (end - mean) for end in np.nanquantile(means, [0.025, 0.975]))
    return Estimate(float(mean), float(low), float(high))


def widening(df: float) -> float:
    """What an interval's ends are moved away from the mean by; 1 without degrees of freedom (nothing is known then)."""
    from scipy.stats import norm, t

    return float(np.sqrt((df + 1) / df) * t.ppf(0.975, df) / norm.ppf(0.975)) if df > 0 else 1.0


def degrees(table: np.ndarray) -> float:
    """Degrees of freedom of a mean over seeds and clients that are crossed, by Satterthwaite: (S, J), NaN for no value.

    Its variance is (MS of seeds + MS of clients - MS of the rest) / (S J), of a two-way layout with random effects.
    """
    seeds, clients = table.shape
    if seeds < 2 or clients < 2:
        return max(table.size - 1.0, 0.0)
    whole = np.where(np.isnan(table), np.nanmean(table), table)
    rows, columns = whole.mean(1, keepdims=True), whole.mean(0, keepdims=True)
    rest = ((whole - rows - columns + whole.mean()) ** 2).sum() / ((seeds - 1) * (clients - 1))
    squares = np.array([clients * rows.var(ddof=1), seeds * columns.var(ddof=1), rest])
    each = np.array([seeds - 1, clients - 1, (seeds - 1) * (clients - 1)])
    total = max(squares[0] + squares[1] - squares[2], squares[:2].max())  # (which noise can make less than its parts)
    below = (squares**2 / each).sum()
    found = total**2 / below if below > 0 else clients - 1
    return float(np.clip(found, min(seeds, clients) - 1, seeds + clients - 2))


def thirds(n: np.ndarray) -> np.ndarray:
    """0, 1 or 2 for clients (N,) of the smallest, middle and largest third by size; equal sizes stay together."""
    return sum((n > np.quantile(n, share)).astype(int) for share in (1 / 3, 2 / 3))


def rank_correlation(a: pd.Series, b: pd.Series) -> float:
    """Spearman's; NaN where there are less than three pairs, or one of the two does not vary."""
    both = a.notna() & b.notna()
    a, b = a[both].rank(), b[both].rank()
    return float(a.corr(b)) if len(a) > 2 and a.nunique() > 1 and b.nunique() > 1 else float("nan")
