"""Rows, and groups of rows, that have nearly all of what columns or weights say."""

from __future__ import annotations

import numpy as np
import pytest

from hierfl.data.disclosure.cells import smallest_cell
from hierfl.data.disclosure.own_rows import OwnRows
from hierfl.data.disclosure.rule import Limits
from hierfl.data.disclosure.shares import isolated, largest_share, share_rules

N = 120
EVERY = np.ones(N, dtype=bool)
AGES = np.random.default_rng(0).integers(20, 90, N).astype(float)


def refused(own: OwnRows) -> set[str]:
    """Names of the rules that do not hold."""
    return {rule.name for rule in share_rules(own, Limits()) if not rule.holds}


@pytest.mark.parametrize(("apart", "expected"), [(1, 1), (2, 2), (4, 4), (5, 0), (30, 0)])
@pytest.mark.parametrize("grouped", [False, True])
def test_two_conditions_that_differ_in_few_are_found(apart: int, expected: int, grouped: bool) -> None:
    """Of rows, and of patients with three rows each."""
    groups = np.arange(N) // 3 if grouped else np.arange(N)
    columns = {
        "1": np.ones(N), "age": AGES, "one": 1.0 * (groups < 15), "other": 1.0 * (groups < 15 - min(apart, 10)),
        "third": 1.0 * (groups % 7 < 3),
    }  # fmt: skip
    few, share = isolated(columns, EVERY, 5, groups if grouped else None)
    assert (few, share > 0.999) == (expected, expected > 0)
    own = OwnRows(N, {}, {}, {}, design=columns, fixed=5, groups=groups if grouped else None)
    assert ("combinations of the design's columns" in refused(own)) == (expected > 0)


@pytest.mark.parametrize(("heavy", "holds"), [(1, False), (2, False), (4, False), (5, True), (N, True)])
@pytest.mark.parametrize("grouped", [False, True])
def test_weights_of_few_are_refused(heavy: int, holds: bool, grouped: bool) -> None:
    """Sums that are weighed by them are sums over these few."""
    groups = np.arange(N) // 3 if grouped else np.arange(N)
    own = OwnRows(
        N, {}, {}, {}, weights={"weight": np.where(groups < heavy, 1e6, 1.0)}, groups=groups if grouped else None
    )
    assert (not refused(own)) == holds


@pytest.mark.parametrize("swapped", [False, True])
def test_of_several_levels_the_one_with_the_fewest_groups_counts(swapped: bool) -> None:
    """Four nurses cross forty items: a column and a weight of one nurse's rows are hers alone, though of all items."""
    row = np.arange(N)
    nurse, item = row % 4, row // 3
    columns = {"1": np.ones(N), "age": AGES, "hers": 1.0 * (nurse == 0)}
    levels = np.stack([item, nurse] if swapped else [nurse, item], 1)
    assert isolated(columns, EVERY, 5, levels)[0] == isolated(columns, EVERY, 5, nurse)[0] > 0
    assert isolated(columns, EVERY, 5, item)[0] == 0
    assert largest_share(columns, EVERY, levels) == pytest.approx(largest_share(columns, EVERY, nurse))
    assert largest_share(columns, EVERY, item) < 0.6
    weights = {"weight": np.where(nurse == 0, 1e6, 1.0)}
    assert refused(OwnRows(N, {}, {}, {}, weights=weights, groups=levels))
    assert not refused(OwnRows(N, {}, {}, {}, weights=weights, groups=item))
    own = OwnRows(N, {}, {"sex": 1 * (item < 20)}, {}, groups=levels)
    assert smallest_cell(own, ["sex"], EVERY) == 4
