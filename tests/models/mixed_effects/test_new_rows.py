"""Rows to predict: the types, columns and names of the fit, or one line; an empty table has an empty answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from hierfl import UserError, mixed_model
from hierfl.models.mixed_effects.fitted_model import FittedMixedModel

FORMULA = "y ~ x + I(x**2) + g + flag + (1 | site/patient)"


def table(rows: int = 60) -> pd.DataFrame:
    rng, k = np.random.default_rng(0), np.arange(rows)
    return pd.DataFrame(
        {
            "y": rng.normal(size=rows), "x": rng.integers(0, 20, rows), "g": np.array(["drug", "placebo"])[k // 3 % 2],
            "flag": rng.random(rows) > 0.5, "site": np.array(["ward a", "ward b", "ward c"])[k % 3],
            "patient": np.array(["P1", "P2", "P3", "P4"])[k // 7 % 4],
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted() -> FittedMixedModel:
    return mixed_model(table(), FORMULA, draws=10)


Change = Callable[[pd.DataFrame], pd.DataFrame]
SAME: list[Change] = [
    lambda df: df[df.columns[::-1]],
    *[
        lambda df, t=t: df.assign(x=df.x.astype(t))
        for t in ("uint8", "int8", "float16", "float32", ">f8", "Int64", "object")
    ],
    lambda df: df.assign(x=[Decimal(int(v)) for v in df.x]),
    *[lambda df, t=t: df.assign(g=df.g.astype(t)) for t in ("category", "object", "string")],
    *[lambda df, t=t: df.assign(flag=df.flag.astype(t)) for t in ("int64", "float32", "boolean", "object")],
    lambda df: df.astype(object),
    lambda df: pd.concat([df.iloc[[k]].T for k in range(len(df))], axis=1).T,
    lambda df: pd.concat([df, df[["y"]], df[["y"]]], axis=1),
    lambda df: df.assign(site=df.site.astype("category"), other=pd.Timestamp("2020")),
]


@pytest.mark.parametrize("change", SAME)
def test_the_same_rows_in_another_form_have_the_same_predictions(fitted: FittedMixedModel, change: Change) -> None:
    new = table().head(6)
    pd.testing.assert_frame_equal(fitted.predict(change(new)), fitted.predict(new))


REFUSED: list[tuple[dict, str]] = [
    ({"x": "12"}, "column 'x' holds text such as '12', and numbers in the fit: df['x'] = df['x'].astype(float)"),
    ({"x": "1,5"}, "column 'x' holds text such as '1,5', and numbers in the fit: '1,5' is none that Python reads"),
    ({"x": pd.Categorical([1, 2, 3, 1, 2, 3])}, "column 'x' holds a category, and numbers in the fit: df['x'] ="),
    ({"x": pd.Timestamp("2020-01-01")}, "column 'x' holds dates"),
    ({"x": 1j}, "column 'x' holds complex numbers"),
    ({"x": [1, 2, np.nan, 4, np.nan, 6]}, "has 2 missing values: a row to predict needs it"),
    ({"x": np.inf}, "column 'x' is not finite in 6 of 6 rows"),
    ({"x": 1e80}, "an effect of the new rows reaches 1e+160"),
    ({"g": 1}, "column 'g' holds numbers, and text such as 'drug' in the fit: df['g'] = df['g'].astype(str)"),
    ({"g": "drug "}, "column 'g' holds 'drug ', which differs from 'drug' of the fit in blanks"),
    ({"g": "zz"}, "column 'g' has the level 'zz', which was in no row of the fit"),
    ({"g": None}, "column 'g' has 6 missing values"),
    ({"flag": "False"}, "text such as 'False', and True and False in the fit: df['flag'] = df['flag'] == 'True'"),
    ({"flag": "FALSE"}, "df['flag'] = df['flag'].str.lower() == 'true'"),
    ({"flag": [1, 2, 1, 2, 1, 2]}, "column 'flag' holds 2, and True and False in the fit: 1 is True, and 0 is False"),
    ({"site": "Ward A"}, "column 'site' holds 'Ward A', which differs from 'ward a' of the fit"),
    ({"site": "ward z"}, "client 'ward z' is not among those fitted"),
    ({"patient": "p1"}, "column 'patient' holds 'p1', which differs from 'P1' of the fit"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_other_rows_are_one_line(fitted: FittedMixedModel, change: dict, words: str) -> None:
    new = table().head(6).reset_index(drop=True).assign(**change)
    with pytest.raises(UserError, match=re.escape(words)):
        fitted.predict(new)
    with pytest.raises(UserError):
        fitted.run.fitted.federation.about["reader"](new) if "site" not in change else fitted.predict(new)


def test_categories_of_truth_values_and_of_0_and_1_are_the_same_levels() -> None:
    df = table().assign(one=lambda df: (df.x > 9).astype(int))
    fit = mixed_model(df, "y ~ C(flag) + C(one) + (1 | site)", draws=0)
    means = fit.predict(df)["mean"]
    assert means.nunique() >= 6
    for flag_dtype, one_dtype in (("int64", "int64"), ("float32", "boolean"), ("bool", "bool")):
        other = df.assign(flag=df.flag.astype(flag_dtype), one=df.one.astype(one_dtype))
        pd.testing.assert_series_equal(fit.predict(other)["mean"], means)
    with pytest.raises(UserError, match="column 'flag' holds 0.5, and True and False in the fit"):
        fit.predict(df.assign(flag=0.5))


def test_groups_in_another_coding_are_named(fitted: FittedMixedModel, caplog: pytest.LogCaptureFixture) -> None:
    """One that was not fitted has an answer; where no row has one that was, their names may be coded otherwise."""
    new = table().head(4)
    fitted.predict(new)
    fitted.predict(new.assign(patient=["P1", "P9", "P9", "P9"]))
    fitted.predict(new.assign(site="ward z"), level="new")
    assert not [line for line in caplog.messages if "has a group" in line]
    fitted.predict(new.assign(patient="1"))
    assert "no row has a group of 'patient' that was fitted, such as '1' of 'ward a', which has 'P1', " in caplog.text


def test_columns_that_lack_are_named_with_the_nearest(fitted: FittedMixedModel) -> None:
    new = table().head(3)
    for changed, words in (
        (new.rename(columns={"x": "x "}), "the table lacks column 'x'; did you mean 'x '?"),
        (new.drop(columns="x"), "the table lacks column 'x'; known: 'y', 'g'"),
        (pd.concat([new, new[["x"]]], axis=1), "the table has two columns called 'x'"),
        (new.to_dict("list"), "df is a table (pandas.DataFrame), not a dict"),
    ):
        with pytest.raises(UserError, match=re.escape(words)):
            fitted.predict(changed)


@pytest.mark.parametrize("level", ["client", "population", "new"])
def test_no_rows_have_no_predictions(fitted: FittedMixedModel, level: str) -> None:
    new = table().head(4)
    wanted = fitted.predict(new, level=level)  # type: ignore[arg-type]
    for empty in (new.iloc[:0], new[new.x > 99], pd.DataFrame({name: [] for name in new})):
        predictions = fitted.predict(empty, level=level)  # type: ignore[arg-type]
        assert list(predictions.columns) == list(wanted.columns)
        assert len(predictions) == 0
        assert predictions["mean"].dtype == wanted["mean"].dtype
    assert len(pd.concat([wanted, predictions])) == 4
    with pytest.raises(UserError, match="the table lacks column 'x'"):
        fitted.predict(new.iloc[:0].drop(columns="x"), level=level)  # type: ignore[arg-type]


def test_rows_in_other_spellings_are_joined_where_the_fit_joins() -> None:
    df = table()
    joins = mixed_model(df, FORMULA, draws=10, spellings="join")
    new = df.head(6)
    dirty = new.assign(site=new.site.str.upper(), g=new.g + " ", patient="\u00a0" + new.patient)
    pd.testing.assert_frame_equal(joins.predict(dirty), joins.predict(new))
    keeps = mixed_model(df, FORMULA, draws=10, spellings="keep")
    with pytest.raises(UserError, match="has the level 'drug ', which was in no row of the fit"):
        keeps.predict(new.assign(g=new.g + " "))
