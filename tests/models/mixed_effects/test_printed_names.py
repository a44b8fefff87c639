"""What columns of a printed table are called."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from hierfl.models.mixed_effects.report.printed import Summary, statistic_name


@pytest.mark.parametrize(
    ("df", "name"), [([8.0, 31.2], "t"), ([math.inf, 1e9], "z"), ([8.0, math.inf], "t or z"), ([], "t")]
)
def test_a_statistic_that_is_compared_with_a_normal_is_z(df: list[float], name: str) -> None:
    assert statistic_name(df) == name


def test_ratios_are_named_where_a_table_has_them() -> None:
    row = {"effect": "x", "estimate": 1.0, "standard_error": 0.5, "lower": 0.0, "upper": 2.0, "statistic": 2.0,
           "df": math.inf, "p": 0.046, "note": ""}  # fmt: skip
    numbers = {"rows": 9.0, "groups": 3.0}
    plain = repr(Summary("y ~ x", "gaussian", "ml", 0.95, pd.DataFrame([row]), numbers))
    odds = repr(Summary("y ~ x", "binomial", "ml", 0.95, pd.DataFrame([{**row, "odds ratio": 2.7}]), numbers))
    assert " z " in plain.splitlines()[2]
    assert "exp of one" not in plain
    assert "coefficients are logarithms: exp of one is its odds ratio" in odds.splitlines()
