"""A site is no oracle that reads its rows out; and what its answers say nevertheless, as docs/threats.md has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.attacks.rows_from_a_fit import honest
from support.attacks.rows_from_answers import (
    Rows,
    Victim,
    asked,
    chosen,
    computed,
    recovered,
    rows,
)
from support.attacks.rows_from_sums import share

from hierfl.inference.engines.remote.bounds import OutOfBounds
from hierfl.models.mixed_effects.search.ranges import ASKED


def counted(victim: Victim, own: Rows, steep: float, questions: int) -> int:
    """The attack of bisection: how many values of x are found with their counts, by questions in rounds of their own.

    The slope in the intercept is X'y less the number of rows above a value, where the coefficient of x is steep.
    """
    scale, centre = victim.scale[1], victim.centre[1]

    def above(value: float) -> float:
        intercept = -steep * (value - centre) / scale
        slope: float = victim.answer(np.array([intercept - victim.offset, steep, 0.0]))["slope"][1]
        return -slope

    cells, estimates = [(19.95, 99.05, above(19.95), above(99.05))], []
    while cells and victim.asked < questions:
        low, high, more, fewer = cells.pop(0)
        if round(more - fewer) < 1:
            continue
        if high - low < 0.11:
            estimates.append((round((low + high) / 2, 1), round(more - fewer)))
            continue
        middle = round((low + high) / 2 - 0.05, 1) + 0.05
        between = above(middle)
        cells = [(low, middle, more, between), (middle, high, between, fewer), *cells]
    values, counts = np.unique(own.x, return_counts=True)
    true_counts = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return sum(true_counts.get(value, 0) == count for value, count in estimates)


def test_steep_coefficients_are_not_answered(tmp_path: Path) -> None:
    """As 145 questions of 'round 1' once gave all rows: each of these is a round of its own."""
    own = rows("binomial", 120, 0)
    with pytest.raises(OutOfBounds, match="cut the rows at a value"):
        counted(Victim("binomial", own, tmp_path), own, 300 * 12.0, 200)


def test_as_steep_as_the_bound_allows_bisection_finds_next_to_nothing(tmp_path: Path) -> None:
    own = rows("binomial", 120, 0)
    victim = Victim("binomial", own, tmp_path)
    spread = ((own.x - victim.centre[1]) / victim.scale[1]).std()
    assert counted(victim, own, 0.98 * ASKED.steepness / spread, 55) <= 2


def test_units_that_a_server_makes_up_do_not_make_steep_coefficients_flat(tmp_path: Path) -> None:
    """The site's own rows are what is looked at: a server may say that the others' x has hardly any spread."""
    victim = Victim("binomial", rows("binomial", 60, 0)._replace(), tmp_path)
    units = victim.method.network.fixed_units
    small = tuple(v / 1000 if k == 1 else v for k, v in enumerate(units.scale))
    object.__setattr__(units, "scale", small)
    with pytest.raises(OutOfBounds, match="cut the rows"):
        victim.answer(np.array([0.0, 1.0, 0.0]))


def test_what_the_answers_of_a_budget_say_of_single_rows(tmp_path: Path) -> None:
    """Not hidden: a server that chooses its points reads a small site (the curve is in docs/images)."""
    own = rows("binomial", 20, 0)
    victim = Victim("binomial", own, tmp_path)
    points = chosen("binomial", victim, own, 20, ASKED.steepness)
    assert recovered(computed("binomial", victim, asked(victim, points), 20), own) > 0.9
    few = Victim("binomial", own, tmp_path / "few")
    answers = asked(few, chosen("binomial", few, own, 1, ASKED.steepness))
    assert recovered(computed("binomial", few, answers, 20), own) < 0.3


@pytest.mark.cpu(4, "a fit of ten sites, and the regression of 120 rows")
def test_a_server_that_only_fits_learns_no_rows_of_a_site_of_120() -> None:
    result = honest("binomial", 120, 0)
    assert float(result["recovered"]) <= float(result["guess"]) + 0.05  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [5, 10, 20])
def test_sums_of_a_gaussian_response_have_no_single_rows(n: int) -> None:
    assert share(n, 0)["recovered"] <= 0.2
