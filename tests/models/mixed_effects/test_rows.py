"""Rows as they come: missing values, levels that a client lacks, separation, clients of one row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.mixed_families import counts

from hierfl import mixed_model
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Dictionary
from hierfl.data.federated.formula_data import FormulaData
from hierfl.errors import UserError

FORMULA = "y ~ 1 + x + g + (1 | site)"


def holed() -> pd.DataFrame:
    """Twelve places, words and numbers, and some holes; one place has nothing but holes."""
    df, rng = counts("binomial", 12), np.random.default_rng(0)
    df["g"] = rng.choice(["a", "b", "c"], len(df))
    df["unused"] = np.nan
    df.loc[rng.random(len(df)) < 0.1, "x"] = np.nan
    df.loc[rng.random(len(df)) < 0.1, "g"] = None
    df.loc[df.site == "s03", "y"] = np.nan
    return df


def test_rows_that_lack_a_value_are_left_out_and_counted() -> None:
    df = holed()
    with pytest.raises(UserError, match="missing value"):
        mixed_model(df, FORMULA, family="binomial")
    fit = mixed_model(df, FORMULA, family="binomial", na="drop", population="ml", draws=0)
    whole = df.drop(columns="unused").dropna()
    theirs = mixed_model(whole, FORMULA, family="binomial", population="ml", draws=0)
    pd.testing.assert_frame_equal(fit.summary().table, theirs.summary().table)
    lost = df[["y", "x", "g"]].isna().any(axis=1)
    assert fit.left_out == df[lost].site.value_counts().sort_index().to_dict()
    assert fit.left_out["s03"] == (df.site == "s03").sum()
    assert theirs.left_out == {}
    assert f"; {lost.sum()} more lack a value, and are left out" in repr(fit.summary())
    for bad, words in (
        (df.assign(site=df.site.where(df.index != 5)), "'site' has 1 missing value"),
        (df.assign(x=np.nan), "none would be left"),
    ):
        with pytest.raises(UserError, match=words):
            mixed_model(bad, FORMULA, family="binomial", na="drop")
    with pytest.raises(UserError, match="unknown value of na 'keep'"):
        mixed_model(df, FORMULA, family="binomial", na="keep")  # type: ignore[arg-type]


def test_all_columns_that_lack_values_are_named_at_once() -> None:
    words = "column 'x' has 2 missing values, 'y' has 1: --na drop"
    df = pd.DataFrame({"y": [1.0, None, 2.0, 3.0], "x": [None, 1.0, None, 2.0], "site": ["a", "a", "b", "b"]})
    with pytest.raises(UserError, match=words):
        mixed_model(df, "y ~ x + (1 | site)")


def test_so_are_a_sites(tmp_path: Path) -> None:
    df = holed()
    own = df[df.site == "s01"].drop(columns="site")
    own.to_csv(tmp_path / "own.csv", index=False)
    dictionary = Dictionary.from_sample(own.dropna(subset=["x", "g"]), ["y", "x", "g"])
    study = StudyFormula(FORMULA, dictionary, "binomial")
    with pytest.raises(UserError, match="lacks"):
        FormulaData(study, "study").site(tmp_path / "own.csv", "s01")
    site_data = FormulaData(study, "study", na="drop").site(tmp_path / "own.csv", "s01")
    assert site_data.rows == len(own[["y", "x", "g"]].dropna())
    assert site_data.left_out == len(own) - site_data.rows
    own.assign(x=np.nan).to_csv(tmp_path / "none.csv", index=False)
    with pytest.raises(UserError, match="no row without missing values"):
        FormulaData(study, "study", na="drop").site(tmp_path / "none.csv", "s01")


def test_the_command_line_says_what_is_left_out(hierfl: Call, tmp_path: Path) -> None:
    df = holed()
    df.to_csv(tmp_path / "mine.csv", index=False)
    how = ("run", "mixed-effects", "--data", "mine.csv", "--formula", FORMULA, "--family", "binomial", "--out", "run")
    code, out, _ = hierfl(*how, "--na", "drop", "--set", "draws=0")
    assert code == 0
    lost = df[["y", "x", "g"]].isna().any(axis=1)
    assert f"({lost.sum()} more lack a value, and are left out)" in " ".join(out.split())
    clients = pd.read_csv(tmp_path / "run" / "clients.csv").set_index("client")
    assert clients.left_out["s01"] == (lost & (df.site == "s01")).sum()
    code, _, err = hierfl(*how, "--na", "keep")
    assert (code, err.count("\n")) == (2, 1)


def test_levels_that_a_client_lacks_or_nobody_had() -> None:
    df = holed().dropna(subset=["y", "x", "g"])
    df = df[~((df.site == "s00") & (df.g == "c"))]
    fit = mixed_model(df, FORMULA, family="binomial", draws=40)
    assert fit.predict(pd.DataFrame({"x": [0.0], "g": ["c"], "site": ["s00"]})).notna().all(axis=None)
    with pytest.raises(UserError, match="column 'g' has the level 'z', which was in no row of the fit"):
        fit.predict(pd.DataFrame({"x": [0.0], "g": ["z"], "site": ["s00"]}))


def test_clients_may_be_categories_and_have_one_row() -> None:
    df = counts("binomial", 8)
    extended = pd.concat([df, df.head(1).assign(site="lonely")])
    named = mixed_model(extended, "y ~ 1 + x + (1 | site)", family="binomial", population="ml", draws=0)
    extended["site"] = pd.Categorical(extended.site, categories=[*extended.site.unique(), "nobody"])
    fit = mixed_model(extended, "y ~ 1 + x + (1 | site)", family="binomial", population="ml", draws=0)
    assert fit.summary().numbers["groups"] == 9
    pd.testing.assert_frame_equal(fit.ranef(), named.ranef())
    assert fit.ranef().set_index("client").n["lonely"] == 1


@pytest.mark.parametrize("family", ["binomial", "poisson"])
def test_a_coefficient_at_infinity_is_said_to_be(family: str) -> None:
    """All of a group have the event, or none has a count: others are what they are without that group's rows."""
    df = counts(family, 12)
    g = (np.arange(len(df)) % 5 == 0).astype(int)
    df = df.assign(g=g, y=np.where(g == 1, 1 if family == "binomial" else 0, df.y))
    fit = mixed_model(df, FORMULA, family=family, population="ml", draws=200)  # type: ignore[arg-type]
    table = fit.summary().table.set_index("effect")
    assert table.note["g"] == "no finite estimate: separated"
    assert (table.note.drop("g") == "").all()
    assert np.isnan(table.standard_error["g"])
    rest = mixed_model(df[df.g == 0], "y ~ 1 + x + (1 | site)", family=family, population="ml", draws=0).summary().table  # type: ignore[arg-type]
    rest = rest.set_index("effect")
    for name in ("Intercept", "x", "sd(Intercept)"):
        assert table.estimate[name] == pytest.approx(rest.estimate[name], rel=1e-4)
        assert table.standard_error[name] == pytest.approx(rest.standard_error[name], rel=1e-4)
    assert fit.summary().numbers["effective_points"] > 100


@pytest.mark.slow
@pytest.mark.cpu(3, "rounds until an estimate is known to have no end")
def test_clients_of_one_kind_each_are_separated() -> None:
    df = counts("binomial", 6)
    df = df.assign(y=(df.site > "s02").astype(float))
    table = (
        mixed_model(df, "y ~ 1 + x + (1 | site)", family="binomial", population="ml", draws=0)
        .summary()
        .table.set_index("effect")
    )
    assert table.note["sd(Intercept)"] == "no finite estimate: separated"


def test_a_large_estimate_that_is_known_is_no_separation() -> None:
    rng = np.random.default_rng(0)
    df = counts("poisson", 12).assign(y=lambda d: rng.poisson(np.exp(8 + d.x)))
    table = mixed_model(df, "y ~ 1 + x + (1 | site)", family="poisson", population="ml", draws=0).summary().table
    assert (~table.note.str.contains("separated")).all()
