"""Who stands out: liars do, and honest clients seldom."""

from __future__ import annotations

import numpy as np
import pytest
from support.robust_bounds import honest, quantile, rows_quantile

from hierfl.inference.server.robust.repeats import Repeats
from hierfl.inference.server.robust.standing import AGAIN, StandsOut, bound, distances, lasting, medians, stand_out


def measured(standardised: np.ndarray) -> np.ndarray:
    """Norms, cosines and influences of which these are the standardised ones."""
    size, angle, influence = np.moveaxis(standardised, -1, 0)
    return np.stack([np.exp(size), -np.tanh(angle), np.exp(influence)], -1)


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "one outlies"])
@pytest.mark.parametrize(("clients", "rounds"), [(4, 1), (10, 1), (10, 20), (20, 20)])
def test_honest_clients_are_seldom_named(kind: str, clients: int, rounds: int) -> None:
    """At most one run of twenty, but for chance: 3 of 40 at most in 95 % of tries and 6 in nearly all."""
    rng = np.random.default_rng([clients, rounds, len(kind)])
    runs = [stand_out(measured(0.5 * honest(rng, rounds, clients, kind) - [0, 0.7, 0])) for _ in range(40)]
    assert sum(map(bool, runs)) <= 6


@pytest.mark.parametrize("clients", [10, 20])
@pytest.mark.parametrize("column", [0, 2])
def test_a_client_far_from_all_is_named_and_no_other(clients: int, column: int) -> None:
    rng = np.random.default_rng(column)
    values = measured(0.3 * honest(rng, 5, clients, "normal") - [0, 0.7, 0])
    values[:, 3, column] *= 1e4
    outliers = stand_out(values)
    assert [(row.client, row.what) for row in outliers] == [(3, column)]


def test_two_liars_are_named_one_after_the_other() -> None:
    values = measured(0.3 * honest(np.random.default_rng(3), 5, 20, "normal") - [0, 0.7, 0])
    values[:, 3, 0] *= 1e4
    values[2, 7, 0] *= 1e5
    assert {(row.client, row.round) for row in stand_out(values)} >= {(7, 3)}
    assert {row.client for row in stand_out(values)} == {3, 7}


def test_against_the_others_direction() -> None:
    values = measured(0.2 * honest(np.random.default_rng(4), 5, 10, "normal") - [0, 1.0, 0])
    values[:, 3, 1] *= -1
    assert [(row.client, row.what) for row in stand_out(values)] == [(3, 1)]


def test_few_clients_and_nothing_known() -> None:
    assert stand_out(np.full((3, 10, 4), np.nan)) == []
    assert stand_out(np.array([[[1.0, 0.5, 1.0], [1.0, 0.5, 1.0], [1e9, -0.9, 1e9]]])) == []


def test_bounds_are_those_of_the_simulation() -> None:
    """Of ten clients, for one round and for ten; the script makes all of them."""
    assert quantile(10, 1, 60) == pytest.approx(bound(10, 1), rel=0.3)
    assert quantile(10, 10, 40) == pytest.approx(bound(10, 10), rel=0.3)


@pytest.mark.parametrize("clients", [4, 10, 50])
def test_bounds_hold_for_what_is_compared_of_rows(clients: int) -> None:
    assert rows_quantile(clients, 200) < 1.05 * bound(clients, 1)


def repeats(prints: np.ndarray) -> list[StandsOut]:
    tracker = Repeats()
    for fingerprint in prints:
        tracker.add(fingerprint)
    return list(tracker.outliers.values())


def test_who_repeats_a_message_is_named() -> None:
    """Not where the broadcast was the same, nor where another repeats its own of that round, nor who says nothing."""
    prints = np.random.default_rng(0).normal(size=(4, 6, 2))
    prints[3, 2] = prints[1, 2]
    assert [(row.client, row.round, row.what) for row in repeats(prints)] == [(2, 4, AGAIN)]
    same = prints.copy()
    same[3, -1] = same[1, -1]
    assert repeats(same) == []
    settled = prints.copy()  # a search that has converged: everybody says next to the same
    settled[3, :-1] = settled[1, :-1] * (1 + 1e-14 * np.random.default_rng(1).normal(size=(5, 2)))
    settled[3, 2] = settled[1, 2]
    assert repeats(settled) == []
    prints[3, 4] = prints[1, 4]
    assert repeats(prints) == []
    limits = 12 + np.array([0.9, 0.95, 1, 0.1, 0.97, 1])[:, None] ** np.arange(1, 25)[:, None, None] * np.ones((6, 2))
    limits[:, [2, -1]] = 14 + np.arange(24)[:, None, None]  # client 3, of separated rows, is at its limit first
    assert repeats(limits) == []
    assert repeats(np.full((3, 6, 2), np.nan)) == []
    silent = np.random.default_rng(0).normal(size=(4, 6, 2))
    silent[:, 2] = 0
    assert repeats(silent) == []


def test_distances_are_from_the_median_of_the_others_in_their_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client at a time, with numbers that are missing; in pieces it is the same."""
    values = np.random.default_rng(1).normal(size=(5, 9, 3))
    values[2, 4] = values[3, :7] = np.nan
    actual = distances(values)
    for j in range(9):
        others = np.delete(values, j, 1)[[0, 1, 2, 4]]
        squares = np.sort((others - np.nanmedian(others, 1, keepdims=True)) ** 2, 1)[:, :-1]
        pooled = np.maximum(np.sqrt(np.nanmean(squares, 1)), [0.3, 0.15, 0.3]) ** 2
        expected = (values[[0, 1, 2, 4], j] - np.nanmedian(others, 1)) / np.sqrt(pooled.mean(0))
        assert np.allclose(actual[[0, 1, 2, 4], j], expected, equal_nan=True)
    assert np.isnan(actual[3]).all()
    monkeypatch.setattr("hierfl.inference.server.robust.standing.LARGEST", 100)
    assert np.array_equal(distances(values), actual, equal_nan=True)
    assert np.array_equal(medians(values[:3]), np.nanmedian(values[:3], 1))


def test_a_direction_counts_as_it_has_been_so_far() -> None:
    far = np.array([[3.0, np.nan], [1.0, 4.0], [np.nan, 2.0], [5.0, 9.0]])
    assert np.array_equal(lasting(far), [[3, np.nan], [2, 4], [2, 3], [3, 4]], equal_nan=True)
