"""One spelling of every name that a formula uses: clients, groups, levels and responses."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError


def clean(rows: int = 48) -> pd.DataFrame:
    """Wards of two regions, patients in them, arms and an answer."""
    k, rng = np.arange(rows), np.random.default_rng(1)
    return pd.DataFrame(
        {
            "y": rng.normal(size=rows), "age": rng.normal(size=rows),
            "ward": np.array(["ward A", "ward B", "ward C", "ward D"])[k % 4],
            "region": np.array(["north", "south"])[k % 4 // 2], "patient": np.array(["P1", "P2", "P3"])[k // 4 % 3],
            "arm": np.array(["drug", "placebo"])[rng.integers(0, 2, rows)],
            "well": np.array(["no", "yes"])[rng.integers(0, 2, rows)],
        }
    )  # fmt: skip


def soiled(df: pd.DataFrame, column: str, share: int = 7) -> pd.DataFrame:
    """Every seventh entry in another spelling."""
    ways = (lambda v: v + " ", str.upper, lambda v: f"\u00a0{v}", lambda v: v[:1] + "\u200b" + v[1:])
    values = [ways[k // share % 4](v) if k % share == 3 else v for k, v in enumerate(df[column])]
    return df.assign(**{column: values})


FORMULAS = [
    ("ward", "y ~ age + arm + (1 | ward)"),
    ("arm", "y ~ age * arm + (1 + arm | ward)"),
    ("arm", "y ~ age + I(arm == 'drug') + (1 | ward)"),
    ("arm", "y ~ age + C(arm, Treatment('placebo')) + (1 | ward)"),
    ("patient", "y ~ age + (1 | ward/patient)"),
    ("ward", "y ~ age + (1 | ward/patient)"),
    ("region", "y ~ age + (1 | region/ward)"),
    ("well", "well['yes'] ~ age + (1 | ward)"),
    ("well", "I(well == 'no') ~ age + (1 | ward)"),
]


@pytest.mark.parametrize(("column", "formula"), FORMULAS)
def test_a_soiled_table_is_refused_and_joined_it_is_the_clean_one(column: str, formula: str) -> None:
    df = clean()
    how = {"family": "binomial" if "well" in formula else "gaussian", "client": "ward"}
    dirty = soiled(df, column)
    with pytest.raises(UserError, match=f"column '{column}' holds .* alone: --spellings join makes them one"):
        from_formula(dirty, formula, **how)
    wanted, design = from_formula(df, formula, **how)
    for choice in ("join", {column: "join"}, f"{column}=join"):
        federation, made = from_formula(dirty, formula, spellings=choice, **how)
        assert federation.ids == wanted.ids
        assert (federation.digest(), made.fixed, made.random) == (wanted.digest(), design.fixed, design.random)
    # new rows in any spelling are those of the clean table; where they were not joined, one line
    reader = federation.about["reader"]
    np.testing.assert_array_equal(reader(soiled(df, column, 5)), wanted.about["reader"](df))
    if column in ("arm", "patient", "region"):
        with pytest.raises(UserError, match=f"column '{column}' holds .* of the fit in blanks"):
            wanted.about["reader"](dirty)


def test_names_that_are_kept_apart_are_two() -> None:
    df = clean().assign(gene=lambda d: np.where(np.arange(len(d)) % 3, "Aa", "aa"))
    with pytest.raises(UserError, match="column 'gene' holds 'Aa' and 'aa', which differ"):
        from_formula(df, "y ~ gene + (1 | ward)", spellings={"ward": "join"})
    federation, design = from_formula(df, "y ~ gene + (1 | ward)", spellings={"ward": "join", "gene": "keep"})
    assert design.fixed == ("Intercept", "gene[aa]")
    assert federation.about["reader"](df.assign(gene="aa"))[:, 1].tolist() == [1.0] * len(df)
    with pytest.raises(UserError, match="spellings names a column that is not used, 'sex'; known: 'age'"):
        from_formula(df, "y ~ age + (1 | ward)", spellings={"sex": "join"})


def test_rows_that_are_left_out_are_counted_by_joined_names() -> None:
    df = soiled(clean(), "ward")
    df.loc[[3, 7], "age"] = np.nan
    federation, _ = from_formula(df, "y ~ age + (1 | ward)", na="drop", spellings="join")
    assert federation.about["left_out"] == {"ward D": 2}


def test_columns_that_are_not_used_may_be_anything() -> None:
    df = clean().assign(note=["x", "X "] * 24, when=pd.Timestamp("2020"), gone=None, lists=[[1]] * 48)
    df = pd.concat([df, df[["note", "lists"]]], axis=1)
    assert from_formula(df, "y ~ age + (1 | ward)")[1].fixed == ("Intercept", "age")
    with pytest.raises(UserError, match="the table has two columns called 'note': rename one"):
        from_formula(df, "y ~ note + (1 | ward)")


@pytest.mark.parametrize(
    ("columns", "formula", "words"),
    [
        ({"age": " age"}, "y ~ age + (1 | ward)", "unknown column 'age'; names with other characters are between"),
        ({"ward": "ward "}, "y ~ age + (1 | ward)", "did you mean 'ward '? A formula writes it `ward `, between"),
        ({"age": "Age"}, "y ~ age + (1 | ward)", "unknown column 'age'; did you mean 'Age'?; known: 'y', 'Age',"),
        ({"age": "aeg"}, "y ~ age + (1 | ward)", "known: 'y', 'aeg',"),
        ({"age": "body-mass"}, "y ~ body-mass + (1 | ward)", "write 'y ~ `body-mass` + (1 | ward)'"),
    ],
)  # fmt: skip
def test_a_header_that_is_not_there_is_named_with_the_nearest(columns: dict, formula: str, words: str) -> None:
    df = clean().rename(columns=columns)
    with pytest.raises(UserError) as refused:
        from_formula(df, formula)
    assert words in str(refused.value)


def test_columns_that_are_named_by_numbers() -> None:
    df = clean().rename(columns={"age": 3})
    federation, design = from_formula(df, "y ~ `3` + (1 | ward)")
    assert design.fixed == ("Intercept", "3")
    np.testing.assert_array_equal(federation.about["reader"](df)[:, 1], df[3])
