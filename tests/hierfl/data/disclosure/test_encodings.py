"""Columns that write rows into the digits of a sum are told from those of ordinary formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hierfl.data.disclosure.encodings import encoding_rules, spread
from hierfl.data.disclosure.own_rows import OwnRows
from hierfl.data.formula.smooth import Smooth

AGE = np.random.default_rng(1).integers(20, 95, 400).astype(float)
BMI = np.random.default_rng(2).lognormal(3.2, 0.2, 400)


@pytest.mark.parametrize(
    ("name", "make", "holds"),
    [
        ("log(age)", np.log, True),
        ("I(age ** 3)", lambda v: v**3, True),
        ("exp(age / 10)", lambda v: np.exp(v / 10), True),
        ("where(age > 60, 1, 0)", lambda v: (v > 60) * 1.0, True),
        ("maximum(age - 60, 0)", lambda v: np.maximum(v - 60, 0), True),
        ("exp2(2 * clip(age, 60, 75))", lambda v: np.exp2(2 * (v.clip(60, 75) - 60)), False),
        ("exp2(-2 * clip(age, 60, 75))", lambda v: np.exp2(-2 * (v.clip(60, 75) - 60)), False),
        ("sinh(age)", lambda v: np.sinh(v - 60), False),
        ("I(age ** 16)", lambda v: (v - 60) ** 16, False),
    ],
)
@pytest.mark.parametrize("raw", [AGE, BMI], ids=["whole", "decimals"])
def test_a_column_may_not_stretch_its_sources_distances(
    name: str, make: Callable[[np.ndarray], np.ndarray], holds: bool, raw: np.ndarray
) -> None:
    values = make(raw if raw is AGE else 2.5 * raw)
    (rule,) = encoding_rules(OwnRows(len(raw), {}, {}, {}, design={name: values}), {"age": raw})
    assert rule.holds is holds, rule.margin


def test_what_a_table_has_by_itself_is_no_encoding() -> None:
    powers = np.exp2(np.arange(40.0))
    assert spread(powers) > 1e11
    assert not list(encoding_rules(OwnRows(40, {}, {}, {"dose": powers}), {"dose": powers}))
    (rule,) = encoding_rules(OwnRows(40, {}, {}, {"offset": powers}), {"age": np.arange(40.0)})
    assert not rule.holds


@pytest.mark.parametrize("k", [5, 10, 20, 200])
def test_columns_of_curves_have_no_magnitudes_by_row(k: int) -> None:
    """Near a turning point two rows are close by chance; a digit of each row would put most rows close."""
    made = Smooth("age", k).basis(57.0, 22.0).columns(AGE)
    names = {f"s(age).{j + 1}": column for j, column in enumerate(made.T)}
    own = OwnRows(len(AGE), {}, {}, {}, design={**names, "log(age)": np.log(AGE)}, curves=frozenset(names))
    (rule,) = encoding_rules(own, {"age": AGE})
    assert rule.holds
    for column in names.values():
        apart = np.abs(column - column.max())
        assert np.quantile(apart, 0.1) > 1e-3 * apart.max()
    digits = np.exp2(2 * np.arange(16.0))
    assert np.quantile(digits - digits.min(), 0.5) < 1e-3 * digits.max()
