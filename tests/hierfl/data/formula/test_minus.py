"""What is taken away in a formula, beside numbers."""

from __future__ import annotations

import pytest

from hierfl.data.formula import gate
from hierfl.errors import UserError


@pytest.mark.parametrize("text", ["y ~ x - 0 + (1 | s)", "y ~ -0 + x + (1 | s)"])
def test_a_zero_that_is_taken_away_leaves_the_intercept(text: str) -> None:
    assert gate.parse(text).safe == "y ~ x + ( 1 | s )"


@pytest.mark.parametrize("text", ["y ~ x + (x - 1*z | s)", "y ~ x - 2*z + (1 | s)"])
def test_a_product_with_a_number_is_no_effect_to_take_away(text: str) -> None:
    with pytest.raises(UserError, match="no effect that could be taken away: write the effects that stay$"):
        gate.parse(text)


def test_two_intercepts_are_not_guessed() -> None:
    with pytest.raises(UserError, match="write one of them"):
        gate.parse("y ~ 0 + x - 0 + (1 | s)")
