"""Sums before the first round: a site in other units is named, and honest ones seldom."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.robust_bounds import moments_quantile, named_of_three

from hierfl.inference.server.robust.moments import MOMENT_BOUNDS, compared, lines, unlike

NAMES = ("age", "weight", "dose")


def sites(seed: int, count: int, spread: float = 0.3, heavy: bool = False) -> list[np.ndarray]:
    """Rows of sites whose means and logarithms of standard deviations differ by a spread."""
    rng = np.random.default_rng([seed, count])
    draw = (lambda: rng.standard_t(5, 3)) if heavy else (lambda: rng.normal(size=3))
    return [
        np.array([60.0, 80.0, 5.0])
        + np.array([12.0, 15.0, 2.0]) * (spread * draw() + np.exp(spread * draw()) * rng.normal(size=(n, 3)))
        for n in rng.integers(20, 400, count)
    ]


def sums(rows: list[np.ndarray], centre: float = 0.0) -> dict[str, np.ndarray]:
    moved = [own - centre for own in rows]
    return {
        "n": np.array([float(len(own)) for own in rows]),
        "total": np.stack([own.sum(0) for own in moved]),
        "square": np.stack([(own**2).sum(0) for own in moved]),
    }


@pytest.mark.parametrize(("count", "factor"), [(10, 10.0), (10, 1000.0), (10, 0.001), (4, 1000.0)])
def test_other_units_are_named(count: int, factor: float) -> None:
    """Of any column, whatever the centre is, and nobody else."""
    for k, centre in ((0, 0.0), (1, 50.0), (2, 0.0)):
        rows = sites(k, count)
        rows[2][:, k] *= factor
        outliers = unlike(compared(sums(rows, centre)))
        assert [(row[0], row[1]) for row in outliers] == [(2, k)]


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("count", [3, 4, 10, 20])
def test_honest_sites_are_seldom_named(count: int, heavy: bool) -> None:
    """At most one study of twenty, but for chance."""
    named = [bool(unlike(compared(sums(sites(seed, count, 0.5, heavy))))) for seed in range(60)]
    assert sum(named) <= 7


@pytest.mark.parametrize("rate", [0.01, 0.05])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 10])
def test_sites_without_a_rare_event_are_not_named(count: int, rate: float) -> None:
    """A column that is constant at one site has no standard deviation there, and is in no other unit."""
    named = 0
    for seed in range(60):
        rng = np.random.default_rng([seed, count])
        named += bool(unlike(compared(sums([rng.poisson(rate, (n, 3)) * 1.0 for n in (12, *[200] * (count - 1))]))))
    assert named <= 7
    rows = sites(0, count)
    rows[1][:, 1] = 80.1  # all of one weight; by a sum of squares its variance is not quite zero
    assert unlike(compared(sums(rows, 1e3))) == []
    rows[1][:, 1] = 80_100.0
    assert [(row[0], row[1]) for row in unlike(compared(sums(rows)))] == [(1, 1)]  # its mean is far off


def test_constants_and_few_sites_say_nothing() -> None:
    rows = [np.full((30, 3), 5.0) for _ in range(6)]
    assert unlike(compared(sums(rows))) == []
    rows = sites(0, 2)
    rows[0] *= 1e6
    assert unlike(compared(sums(rows))) == []


@pytest.mark.parametrize("factor", [12.0, 1000.0, 1 / 12])
def test_of_three_sites_a_gross_difference_is_named(factor: float) -> None:
    """Months for years: a study of three is the smallest that the default policy allows."""
    for k in range(3):
        rows = sites(k, 3, 0.1)
        rows[1][:, k] *= factor
        assert [(row[0], row[1]) for row in unlike(compared(sums(rows)))] == [(1, k)]
    rows = [np.outer(np.linspace(-1, 1, 50), np.full(3, scale)) for scale in (1.0, 30.0, 900.0)]
    assert unlike(compared(sums(rows))) == []  # no two agree


def test_lines_are_by_prefix_and_name() -> None:
    rows = sites(1, 6)
    rows[4][:, 1] *= 1000
    totals = sums(rows)
    answers = {
        f"h{j}": {f"y_{k}": torch.tensor(v[j]) for k, v in totals.items()} | {"n": torch.tensor(3.0)} for j in range(6)
    }
    (line,) = lines(answers, {"y_": NAMES, "": NAMES, "z_": ()})
    assert line.startswith("h4 stands out before the first round by the mean of weight, ")


def test_bounds_are_those_of_the_simulation() -> None:
    assert moments_quantile(6, 60) == pytest.approx(MOMENT_BOUNDS[6], rel=0.35)
    assert named_of_three("skewed", 10, 100) <= 0.05
