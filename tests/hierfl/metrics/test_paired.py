"""Differences client by client: gains by hand, intervals that cover, and what is no difference."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError
from hierfl.metrics import paired


def frame(seeds: int, clients: int, shift: float = 0.0, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [
        {"seed": s, "client": f"c{j}", "n": 5 * (j + 1), "n_test": 10, "accuracy": 0.5 + shift, "nll": 1 - shift,
         "coverage90": 0.8 + shift, "draws_nll": rng.normal()}
        for s in range(seeds)
        for j in range(clients)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_gains_have_the_sign_that_makes_more_better() -> None:
    better, plain = frame(2, 3, 0.05), frame(2, 3)
    columns = {"accuracy": ("accuracy", "accuracy"), "nll": ("nll", "draws_nll"), "coverage90": ("coverage90",) * 2}
    gains = paired.gains(better.sample(frac=1, random_state=0), plain, columns).sort_values(["seed", "client"])
    assert np.allclose(gains["accuracy"], 0.05)
    assert np.allclose(gains["nll"], plain["draws_nll"] - better["nll"])  # less is better
    assert np.allclose(gains["coverage90"], 0.05)  # 0.05 nearer to 0.9
    untested = better.assign(n_test=np.where(better["client"] == "c1", 0, 10))
    assert set(paired.gains(untested, plain.assign(n_test=untested["n_test"]), columns)["client"]) == {"c0", "c2"}
    for other, words in (
        (plain.assign(seed=plain["seed"] + 5), "no seed in common"),
        (plain.assign(n=plain["n"] + 1), "other data"),
        (plain[plain["client"] != "c2"], "other data"),
    ):
        with pytest.raises(UserError, match=words):
            paired.gains(better, other, columns)


def brute(values: np.ndarray, seeds: np.ndarray, clients: np.ndarray | None, times: int) -> np.ndarray:
    """The bootstrap, one resample after the other."""
    rng, means = np.random.default_rng(1), []
    for _ in range(times):
        names, total = np.unique(seeds), []
        who = rng.choice(np.unique(clients), len(np.unique(clients))) if clients is not None else None
        for s in rng.choice(names, len(names)):
            mine = values[seeds == s]
            if clients is None:
                total.append(rng.choice(mine, len(mine)).mean())
            else:
                of = dict(zip(clients[seeds == s], mine, strict=True))
                total.append(np.mean([of[c] for c in who]))
        means.append(np.mean(total))
    return np.quantile(means, [0.025, 0.975])


@pytest.mark.parametrize("crossed", [False, True])
def test_the_bootstrap_is_the_one_that_is_described(crossed: bool) -> None:
    """Against loops; seeds differ by 1, clients by 2: alike under every seed, or afresh."""
    rng, s, j = np.random.default_rng(0), 4, 12
    seeds, clients = np.repeat(np.arange(s), j), np.tile([f"c{k}" for k in range(j)], s)
    lasting = np.tile(rng.normal(size=j), s) if crossed else rng.normal(size=s * j)
    values = np.repeat(rng.normal(size=s), j) + 2 * lasting + 0.1 * rng.normal(size=s * j)
    told = clients if crossed else None
    interval = paired.bootstrap(values, seeds, told)
    assert interval.mean == pytest.approx(values.mean())
    plain = brute(values, seeds, told, 4000) - values.mean()
    table = values.reshape(s, j)
    error, df = paired.standard_error(table if crossed else list(table))
    if not crossed:
        assert (error, df) == pytest.approx((table.mean(1).std(ddof=1) / s**0.5, s - 1))
    got = np.array([interval.low, interval.high]) - values.mean()
    assert got / np.ptp(got) == pytest.approx(plain / np.ptp(plain), abs=0.03)  # the bootstrap's shape
    normal = np.ptp(plain) / 2 / 1.96  # its standard deviation, about
    assert np.ptp(got) / np.ptp(plain) == pytest.approx(error * paired.student(df) / 1.96 / normal, rel=0.1)
    holes = np.r_[values, np.nan]
    more = paired.bootstrap(holes, np.r_[seeds, 0], None if told is None else np.append(told, "c99"))
    assert more == interval
    assert paired.bootstrap(values, seeds, told) == interval
    nothing = paired.bootstrap(np.array([np.nan]), np.zeros(1), None)
    assert all(np.isnan(nothing))


def test_the_interval_covers() -> None:
    """Of one seed's 40 clients, 95 times of a hundred; binomial error 1.5 points, and a little for the bootstrap's."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(200):
        values = rng.gamma(2.0, size=40)
        interval = paired.bootstrap(values, np.zeros(40), None, times=1000)
        hits += interval.low <= 2.0 <= interval.high
    assert 0.88 <= hits / 200 <= 0.985


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("between", [0.0, 0.3, 1.0])
def test_intervals_of_few_seeds_cover(crossed: bool, between: float) -> None:
    """Three seeds of 20 clients, binomial error 1.5 points; the bootstrap alone covers 75 % (nested, between 1)."""
    rng, hits, times = np.random.default_rng(1), 0, 200
    seeds = np.repeat(np.arange(3), 20)
    names = np.tile(np.arange(20).astype(str), 3) if crossed else None
    for _ in range(times):
        values = between * np.repeat(rng.normal(size=3), 20) + rng.normal(size=60)
        if crossed:
            values = values + np.tile(rng.normal(size=20), 3)
        interval = paired.bootstrap(values, seeds, names, times=500)
        hits += interval.low <= 0 <= interval.high
    assert 0.9 < hits / times < 0.995


def test_standard_errors_are_of_what_varies() -> None:
    """In the limits where one of them varies alone, where both do, and where there is hardly anything."""
    rng = np.random.default_rng(0)
    noise = 0.01 * rng.normal(size=(4, 30))
    error, df = paired.standard_error(noise + 5 * rng.normal(size=(4, 1)))
    assert 2.9 < df < 3.2
    error, df = paired.standard_error(people := noise + 5 * rng.normal(size=(1, 30)))
    assert 28.5 < df < 29.6
    assert error == pytest.approx(people.mean(0).std(ddof=1) / 30**0.5, rel=1e-2)
    both = noise + 2 * rng.normal(size=(4, 1)) + 3 * rng.normal(size=(1, 30))
    error, df = paired.standard_error(both)
    expected = (both.mean(1).var(ddof=1) / 4 + both.mean(0).var(ddof=1) / 30) ** 0.5
    assert error == pytest.approx(expected, rel=1e-3)
    assert 3 < df < 29
    alike = [rng.normal(size=12) for _ in range(4)]
    alike = [row - row.mean() for row in alike]  # seeds that differ by less than their clients explain
    error, df = paired.standard_error(alike)
    assert df == 44
    assert error == pytest.approx(np.mean([row.var(ddof=1) for row in alike]) ** 0.5 / 48**0.5)
    assert paired.standard_error([np.array([1.0, 2.0, 4.0])])[1] == 2
    assert paired.standard_error([np.array([1.0]), np.array([2.0])]) == pytest.approx((0.5, 1))
    assert paired.standard_error([np.array([1.0])]) == (0.0, 0.0)
    assert paired.student(4) == pytest.approx(2.7764451)
    lone = paired.bootstrap(np.array([3.0]), np.zeros(1), None)
    assert (lone.mean, lone.low, lone.high) == (3.0, 3.0, 3.0)


def test_sizes_and_ranks() -> None:
    assert paired.by_size(np.array([1, 2, 3, 4, 5, 6])).tolist() == [0, 0, 1, 1, 2, 2]
    assert paired.by_size(np.array([7, 7, 7])).tolist() == [0, 0, 0]
    assert paired.by_size(np.array([1, 1, 1, 1, 9])).tolist() == [0, 0, 0, 0, 2]
    assert paired.by_size(np.array([5] * 9 + [10]), 6).tolist() == [0] * 9 + [5]
    assert paired.by_size(np.array([3, 4]), 1).tolist() == [0, 0]
    a = pd.Series([1.0, 2.0, 3.0, 4.0, np.nan])
    assert paired.rank_correlation(a, pd.Series([1.0, 8.0, 27.0, 64.0, 5.0])) == pytest.approx(1.0)
    assert np.isnan(paired.rank_correlation(a, pd.Series([1.0] * 5)))
