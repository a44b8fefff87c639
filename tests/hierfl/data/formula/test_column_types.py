"""A number is the same number in every type, and what is no number says how it becomes one."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError

ROWS = 48
MODEL = "y ~ x + I(x**3) + I((x - 40)**4) + x:z + (1 + x | site)"


def table() -> pd.DataFrame:
    rng = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "y": rng.normal(size=ROWS), "x": rng.integers(0, 101, ROWS), "z": rng.integers(90, 101, ROWS),
            "site": [f"s{k % 4}" for k in range(ROWS)],
        }
    )  # fmt: skip


TYPES = [
    "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "float32", "float64", "longdouble", "object",
    "Int64", "UInt8", "Float32", ">i4", ">f8", "Sparse[int]",
]  # fmt: skip
MADE: list[Callable[[int], Any]] = [Decimal, Fraction, np.int8, lambda k: np.float32(k) if k % 2 else Decimal(k)]


@pytest.mark.parametrize("how", [*TYPES, *MADE])
def test_effects_do_not_depend_on_the_type_of_a_number(how: Any) -> None:
    """Whole numbers of 8 bits would wrap around, and the formula's cubes with them."""
    df = table()
    convert = (
        (lambda s: s.astype(how)) if isinstance(how, str) else lambda s: pd.Series([how(v) for v in s], dtype=object)
    )
    other = df.assign(x=convert(df.x), z=convert(df.z))
    wanted, design = from_formula(df, MODEL)
    federation, made = from_formula(other, MODEL)
    assert (federation.digest(), made.fixed) == (wanted.digest(), design.fixed)
    for reader in (wanted.about["reader"], federation.about["reader"]):
        np.testing.assert_array_equal(reader(other), wanted.about["reader"](df))
    np.testing.assert_array_equal(wanted.x[:, 2], wanted.x[:, 1] ** 3)


def test_large_whole_numbers_and_truth_values_are_computed_with_as_numbers() -> None:
    df = table().assign(big=lambda d: d.x.astype("int64") * 10**9 + 3, a=lambda d: d.x > 30, b=lambda d: d.z > 95)
    federation, design = from_formula(df, "y ~ I(big**2) + I(a + b) + C(a) + (1 | site)")
    assert design.fixed == ("Intercept", "I(big ** 2)", "I(a + b)", "C(a)[True]")
    np.testing.assert_allclose(federation.x[:, 1], df.big.astype(float) ** 2, rtol=1e-15)
    np.testing.assert_array_equal(federation.x[:, 2], df.a.astype(int) + df.b.astype(int))
    for response in ("uint8", "int16", "Int64", "object"):
        counts = df.assign(y=df.x.astype(response), n=(df.x + 60).astype(response))
        binomial, _ = from_formula(counts, "p(y, n) ~ z + (1 | site)", family="binomial")
        np.testing.assert_array_equal(binomial.y, df.x)


DAYS = pd.Timestamp("2021-03-01") + pd.to_timedelta(np.arange(ROWS) % 11, unit="D")
REFUSED: list[tuple[Any, str]] = [
    (DAYS, "dates"),
    (DAYS.tz_localize("Europe/Berlin"), "dates"),
    ([day.date() for day in DAYS], "dates"),
    ([day.to_pydatetime() for day in DAYS], "dates"),
    (DAYS - DAYS[0], "time spans"),
    ([datetime.timedelta(hours=k) for k in range(ROWS)], "time spans"),
    (np.arange(ROWS) * 1j + np.arange(ROWS), "complex numbers"),
    ([complex(k, 1) for k in range(ROWS)], "complex numbers"),
    (pd.period_range("2020-01", periods=ROWS, freq="M"), "periods"),
    (pd.arrays.IntervalArray.from_breaks(range(4)).take(np.arange(ROWS) % 3), "intervals"),
    ([b"u", b"v"] * (ROWS // 2), "bytes"),
    ([1, "u"] * (ROWS // 2), "values of several types (int and str)"),
    ([Decimal("0.1234567890123456789"), Decimal(1)] * (ROWS // 2), "more digits than double precision"),
    ([[1], [2]] * (ROWS // 2), "list objects"),
]


@pytest.mark.parametrize(("values", "words"), REFUSED)
def test_what_no_formula_reads_is_named_with_a_way_that_works(values: Any, words: str) -> None:
    df = table().assign(x=values)
    for formula in ("y ~ x + (1 | site)", "y ~ np.log(x) + z + (1 | site)", "y ~ C(x) + (1 | site)"):
        with pytest.raises(UserError, match=re.escape("column 'x' holds ")) as refused:
            from_formula(df, formula)
        assert words in str(refused.value)
    wanted, _ = from_formula(table(), "y ~ z + (1 | site)")
    with pytest.raises(UserError, match=re.escape("column 'x' holds ")):
        from_formula(df, "x ~ z + (1 | site)")
    if words == "list objects":
        return
    (way,) = re.findall(r"(df\['x'\] = .+?)(?: takes| makes| counts| rounds)", str(refused.value))
    exec(way, {"df": df, "pd": pd, "np": np})
    federation, _ = from_formula(df, "y ~ x + (1 | site)")
    assert len(federation.about["reader"](df)) == ROWS == len(wanted.x)


def test_days_are_counted_from_a_date_that_does_not_depend_on_the_rows() -> None:
    df = table().assign(x=DAYS)
    with pytest.raises(UserError, match=re.escape("df['x'] = (df['x'] - pd.Timestamp('2021-03-01 00:00:00')).dt.days")):
        from_formula(df, "y ~ x + (1 | site)")


def test_a_table_without_rows_or_that_is_none_is_one_line() -> None:
    for df, words in (
        (table().iloc[:0], "the table has no rows"),
        (table().to_dict("list"), "a table is a pandas.DataFrame, not dict: pd.DataFrame(...) makes one"),
        (table().iloc[0], "not Series: of one row df.iloc[[0]] is one"),
        (pd.concat({"a": table()}, axis=1), "names of several levels: make them one, as in df.columns ="),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            from_formula(df, "y ~ x + (1 | site)")
