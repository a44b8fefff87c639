"""When a fit ends, and whether it still gets better, as a line on the screen says it."""

from __future__ import annotations

import io
from datetime import datetime

import numpy as np
import pytest

from hierfl.inference.run import progress
from hierfl.inference.run.pace import Pace, in_words
from hierfl.inference.run.trend import line, trend_of


def curve(values: np.ndarray, split: str = "validation", metric: str = "pm_accuracy") -> list[dict]:
    return [{"round": t, "split": split, metric: float(v)} for t, v in enumerate(values, 1)]


def test_rounds_that_are_evaluated_are_counted_apart() -> None:
    pace = Pace(lambda number: number % 5 == 1 or number == 20)
    for number in range(1, 11):
        pace.add(number, 30.0 if number == 3 else 4.0 if number in (1, 6) else 1.0)  # one round was disturbed
    assert pace.seconds_left(10, 20) == 7 * 1.0 + 3 * 4.0
    assert pace.words(10, 20) == "ends in about 19 s"
    assert Pace().words(0, 20) == pace.words(20, 20) == ""
    slow = Pace(early=True, _plain=[1800.0])
    assert slow.words(8, 12, datetime(2030, 1, 1, 23, 30)) == "up to 4 more rounds, 2 h at this pace (at 01:30)"
    assert [in_words(s) for s in (0.5, 119, 120, 7199, 7200, 200_000)] == [
        "0.5 s", "119 s", "2 min", "120 min", "2 h", "2.31 days",
    ]  # fmt: skip


def test_a_line_has_the_standard_error_that_least_squares_gives() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(400.0)
    slopes, errors = zip(*(line(x, 0.3 * x + rng.normal(size=400)) for _ in range(100)), strict=True)
    assert np.mean(slopes) == pytest.approx(0.3, abs=2e-4)
    assert np.std(slopes) == pytest.approx(np.mean(errors), rel=0.2)
    noise = rng.normal(size=(100, 401))
    moving = [line(x, e[1:] + e[:-1]) for e in noise]  # correlated by one half
    assert np.std([slope for slope, _ in moving]) == pytest.approx(np.mean([error for _, error in moving]), rel=0.35)


@pytest.mark.parametrize(("rounds", "correlation"), [(12, 0.0), (30, 0.5), (60, 0.8)])
def test_curves_whose_truth_is_known(rounds: int, correlation: float) -> None:
    rng, t, tries = np.random.default_rng(rounds), np.arange(1, rounds + 1), 100

    def share(mean: np.ndarray) -> float:
        hits = 0
        for _ in range(tries):
            noise = rng.normal(size=rounds) * 0.01
            for k in range(1, rounds):
                noise[k] = correlation * noise[k - 1] + np.sqrt(1 - correlation**2) * noise[k]
            trend = trend_of(curve(mean + noise), examples=300)
            assert trend is not None
            hits += trend.kind == "rising"
        return hits / tries

    assert share(np.full(rounds, 0.9)) <= 0.05
    assert share(0.9 - 0.5 * np.exp(-10 * t / rounds)) <= 0.06  # level long before the end
    assert share(0.9 - 0.5 * np.exp(-t / rounds)) >= 0.6


def test_what_a_trend_is_of() -> None:
    rising = np.linspace(0.5, 0.9, 20)
    assert trend_of(curve(rising, "test")) is None  # test data choose nothing
    assert trend_of(curve(rising)[:5]) is None
    assert (trend := trend_of([*curve(rising, "test"), *curve(rising)])) is not None
    assert (trend.words, trend.first, trend.last) == ("validation still rising", 11, 20)
    assert trend.change == pytest.approx(rising[-1] - rising[-10])
    assert trend_of(curve(rising[::-1], metric="pm_rmse", split="train")).words == "train still falling"  # type: ignore[union-attr]
    assert trend_of(curve(rising, metric="pm_rmse")).kind == "flat"  # type: ignore[union-attr]
    # Three more of 60 examples, one after the other, are chance.
    three = np.repeat([40, 41, 42, 43], 5) / 60
    assert trend_of(curve(three), examples=60).kind == "flat"  # type: ignore[union-attr]
    assert trend_of(curve(rising), until=10).last == 10  # type: ignore[union-attr]


def test_the_line_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, screen = [0.0], io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress.sys, "stderr", screen)
    rows: list[dict] = []
    with progress.Bar(20, 0, Pace(lambda number: True, early=True), rows) as bar:
        bar._start = lambda: None  # type: ignore[method-assign]
        for t in range(1, 13):
            clock[0] += 8.0
            rows += [{"round": t, "split": "validation", "pm_accuracy": 0.5 + 0.02 * t}]
            bar.advance({"pm_accuracy": 0.25})
        bar.end(converged=True)
    lines = screen.getvalue().splitlines()
    assert lines[0] == "round 2/20  up to 18 more rounds, 2.4 min at this pace  PM 25.0%"
    assert lines[-2] == "round 12/20  up to 8 more rounds, 64 s at this pace  PM 25.0%  validation still rising"
    assert lines[-1] == "converged in round 12 of at most 20"
