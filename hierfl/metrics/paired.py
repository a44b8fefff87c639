"""Two ways to fit the same clients: who gains, how much, and how sure is it?

Takes frames with a row for each seed and client. A gain is what the first has over the second, with the sign that makes
more of it better, paired by seed and client: what is common to both (how hard the client's data are) drops out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import UserError
from . import registry
from .registry import client_metrics

if TYPE_CHECKING:
    import pandas as pd

#: names of the metrics of which a client has a gain
METRICS = client_metrics()


class Estimate(NamedTuple):
    """A mean and its bootstrap interval."""

    mean: float
    low: float
    high: float


def gains(left: pd.DataFrame, two: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
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
    common = sorted(set(left["seed"]) & set(two["seed"]))
    parts = [frame[frame["seed"].isin(common)].astype({"client": str}) for frame in (left, two)]
    both = parts[0].merge(parts[1], on=keys, suffixes=("_1", "_2"), validate="one_to_one")
    if not common or len(both) != len(parts[0]) or len(both) != len(parts[1]):
        raise UserError("they have no seed in common" if not common else "their clients have other data")
    table = both[keys].copy()
    for metric, (first, second) in columns.items():
        a, b = (both[f"{name}_{k}" if f"{name}_{k}" in both else name] for k, name in ((1, first), (2, second)))
        how = registry.METRICS[metric]
        if how.nominal is not None:
            a, b = -(a - how.nominal).abs(), -(b - how.nominal).abs()
        table[metric] = b - a if how.better == "lower" else a - b
    return table[table["n_test"] > 0].reset_index(drop=True)


def bootstrap(values: np.ndarray, seeds: np.ndarray, clients: np.ndarray | None, times: int = 10_000) -> Estimate:
    """Mean over clients, then over seeds, and its central 95 % over resampled seeds and clients.

    Seeds are drawn first, then clients within each: under another seed a client of the same name has other data. Where
    it has not, clients are drawn once for all seeds. With one seed the interval is of the clients alone.

    A bootstrap of n units shows (n - 1) / n of their variance, nothing of how uncertain that is, and with two stages
    some of it twice: with few seeds its intervals are far from what they say. So its ends keep their proportion to
    each other, and are moved to where they would be for the standard error and degrees of freedom that seeds and
    clients have as random effects (:func:`standard_error`): as far as Student's t of them, instead of the normal
    quantile of the bootstrap's own standard deviation.

    Args:
        values: (N,), NaN for no value.
        seeds: (N,), of which seed.
        clients: (N,), of which client, where a name means the same data under every seed; None where it does not.
        times: resamples; the same ones each time.
    """
    present = ~np.isnan(values)
    if not present.any():
        return Estimate(float("nan"), float("nan"), float("nan"))
    rng, (names, seeds) = np.random.default_rng(0), np.unique(seeds[present], return_inverse=True)
    values, chosen = values[present], rng.integers(0, len(names), (times, len(names)))
    if clients is not None:
        people, clients = np.unique(clients[present], return_inverse=True)
        table = np.full((len(names), len(people)), np.nan)
        table[seeds, clients] = values
        who = rng.integers(0, len(people), (times, len(people)))
        mean, present = np.nanmean(table, 1).mean(), ~np.isnan(table)
        sums = np.stack([row[who].sum(1) for row in np.nan_to_num(table)], 1)
        counts = np.stack([row[who].sum(1) for row in present], 1)
        means_of_seed = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
        means = np.take_along_axis(means_of_seed, chosen, 1).mean(1)
    else:
        groups, means = [values[seeds == k] for k in range(len(names))], np.zeros(times)
        mean = np.mean([group.mean() for group in groups])
        for slot in chosen.T:
            for k, group in enumerate(groups):
                replicates = np.flatnonzero(slot == k)
                means[replicates] += group[rng.integers(0, len(group), (len(replicates), len(group)))].mean(1) / len(
                    names
                )
    error, df = standard_error(groups if clients is None else table)
    ends, spread = np.nanquantile(means, [0.025, 0.975]) - mean, np.nanstd(means)
    scale = error * student(df) / (student(np.inf) * spread) if df > 0 and spread > 0 else 1.0
    if len(names) == 2 and df > 0:  # resamples of two seeds end at either's mean
        ends, scale = np.array([-1.0, 1.0]), error * student(df)
    return Estimate(float(mean), float(mean + scale * ends[0]), float(mean + scale * ends[1]))


def student(df: float) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.stats import t

    return float(t.ppf(0.975, df))


def standard_error(values: Sequence[np.ndarray] | np.ndarray) -> tuple[float, float]:
    """Standard error of the mean over seeds of their clients' means, and its degrees of freedom (0: not known).

    Args:
        values: a seed's clients (J_s,), for each seed, where clients are its own; or a table (S, J), NaN for no value,
            where a client is the same under every seed.

    Clients of each seed: the variance of the seeds' means over S, of S - 1 degrees; where they differ by less than
    their clients explain, the clients' variance, of all of them. The same clients: (MS of seeds + MS of clients - MS of
    the rest) / (S J), of the two-way layout with random effects, and no less than either part; degrees of freedom by
    Satterthwaite.
    """
    if isinstance(values, np.ndarray) and min(values.shape) > 1:
        return _crossed(values)
    by_seed = [row[~np.isnan(row)] for row in values]
    if len(by_seed) > 1 and all(len(row) == 1 for row in by_seed):  # one client
        by_seed = [np.concatenate(by_seed)]
    means, s = np.array([row.mean() for row in by_seed]), len(by_seed)
    within = np.array([row.var(ddof=1) / len(row) if len(row) > 1 else np.nan for row in by_seed])
    inside = 0.0 if np.isnan(within).all() else float(np.nanmean(within)) / s
    between = means.var(ddof=1) / s if s > 1 else 0.0
    if between > inside:
        return between**0.5, s - 1.0
    return inside**0.5, float(sum(len(row) - 1 for row in by_seed))


def _crossed(table: np.ndarray) -> tuple[float, float]:
    seeds, clients = table.shape
    whole = np.where(np.isnan(table), np.nanmean(table), table)
    rows, columns = whole.mean(1, keepdims=True), whole.mean(0, keepdims=True)
    rest = ((whole - rows - columns + whole.mean()) ** 2).sum() / ((seeds - 1) * (clients - 1))
    squares = np.array([clients * rows.var(ddof=1), seeds * columns.var(ddof=1), rest])
    degrees = np.array([seeds - 1, clients - 1, (seeds - 1) * (clients - 1)])
    total = max(squares[0] + squares[1] - squares[2], squares[:2].max())  # which noise can make less than its parts
    below = (squares**2 / degrees).sum()
    df = total**2 / below if below > 0 else clients - 1
    return float((total / whole.size) ** 0.5), float(np.clip(df, min(seeds, clients) - 1, seeds + clients - 2))


def by_size(n: np.ndarray, parts: int = 3) -> np.ndarray:
    """0 to parts - 1 for clients (N,), by size, about equally many of each; equal sizes stay together."""
    return sum((n > np.quantile(n, k / parts)).astype(int) for k in range(1, parts)) + np.zeros(len(n), int)


def rank_correlation(a: pd.Series, b: pd.Series) -> float:
    """Spearman's; NaN where there are less than three pairs, or one of the two does not vary."""
    both = a.notna() & b.notna()
    a, b = a[both], b[both]
    if len(a) < 3 or a.nunique() == 1 or b.nunique() == 1:
        return float("nan")
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)
