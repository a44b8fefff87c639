"""Two studies' rows: whether some are in both, where chance makes rows equal as well."""

from __future__ import annotations

import numpy as np
import pytest

from hierfl.data.disclosure.row_hashes import PART
from hierfl.data.disclosure.shared_rows import share_rows


def hashes(**columns: np.ndarray) -> dict[str, np.ndarray]:
    n = len(next(iter(columns.values())))
    return {**{k: np.asarray(v, np.int64) * 1_000_003 for k, v in columns.items()}, PART: np.zeros(n, np.int64)}


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_coarse_columns_are_equal_by_chance(seed: int) -> None:
    """Ages in years, weights in kilograms and two categories: 600 patients each, of whom none, or sixty, are both."""
    rng = np.random.default_rng(seed)
    people = {"age": rng.integers(20, 90, 1200), "weight": rng.normal(75, 12, 1200).round()}
    people |= {"sex": rng.integers(0, 2, 1200), "stage": rng.integers(0, 4, 1200)}

    def some(rows: np.ndarray) -> dict[str, np.ndarray]:
        return hashes(**{k: v[rows] for k, v in people.items()})

    indices = np.arange(600)
    assert not share_rows(some(indices), some(np.arange(600, 1200)))
    assert share_rows(some(indices), some(np.arange(540, 1140)))


def test_a_column_that_was_written_anew_hides_nothing() -> None:
    rng = np.random.default_rng(0)
    age, time = rng.normal(size=(2, 500)) * 1e6
    original = hashes(age=age[:300], time=time[:300])
    assert share_rows(original, hashes(age=age[200:], time=time[200:] + 1e5))
    assert share_rows(original, hashes(age=age[200:], other=time[200:]))
    assert not share_rows(original, hashes(age=age[300:], time=time[300:]))
    assert not share_rows(original, hashes(other=time[200:]))


def test_columns_that_do_not_tell_rows_apart_say_nothing_of_few_rows() -> None:
    sex, stage = np.arange(400) % 2, np.arange(400) % 3
    assert not share_rows(hashes(sex=sex[:100], stage=stage[:100]), hashes(sex=sex[80:300], stage=stage[80:300]))
