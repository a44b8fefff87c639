"""Coverage of intervals and uniformity of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from hierfl.models.any_model.sbc.ranks import Ranks, adjusted, band, points_of

DRAWS = 399


def test_p_values_of_uniform_ranks_are_as_small_as_they_say() -> None:
    rng = np.random.default_rng(0)
    p_values = np.array([Ranks("", rng.integers(0, DRAWS + 1, 200), DRAWS).p_value for _ in range(400)])
    # They take few values: no more than their share are below a level.
    assert 0.02 < (p_values < 0.05).mean() < 0.08
    assert (p_values < 0.5).mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [(0.7, 0.7, "narrow"), (1.5, 1.5, "wide"), (2.0, 1.2, "low"), (1.2, 2.0, "high")],
)
def test_ranks_that_are_off_are_seen_and_it_says_how(a: float, b: float, words: str) -> None:
    places = np.random.default_rng(1).beta(a, b, 500)
    ranks = Ranks("", (places * (DRAWS + 1)).astype(int), DRAWS)
    assert ranks.p_value < 0.01
    assert words in ranks.worst


def test_coverage_counts_the_middle_ranks_exactly() -> None:
    """Of 400 ranks 360 are within the central 90 %, those from 20 to 379."""
    ranks = Ranks("", np.arange(DRAWS + 1), DRAWS)
    assert ranks.coverage(0.9)[0] == 360 / 400
    assert ranks.coverage(0.5)[0] == 200 / 400
    assert Ranks("", np.array([19, 20, 379, 380]), DRAWS).coverage(0.9)[0] == 0.5
    np.testing.assert_allclose(ranks.ecdf, ranks.points)


def test_uniform_ranks_are_within_the_band_in_95_of_100_cases() -> None:
    rng, z = np.random.default_rng(2), points_of(300, DRAWS)
    low, high = band(300, DRAWS)
    within = [
        bool(((ecdf >= low) & (ecdf <= high)).all())
        for ecdf in (Ranks("", rng.integers(0, DRAWS + 1, 300), DRAWS).ecdf for _ in range(400))
    ]
    assert len(z) == len(low)
    assert np.mean(within) == pytest.approx(0.95, abs=0.03)


def test_of_several_p_values_the_smallest_counts_for_all() -> None:
    assert adjusted([0.01, 0.2, 0.04]) == pytest.approx([0.03, 0.2, 0.08])
