"""Rules on a site's own rows: what DataSHIELD refuses is refused, and honest studies pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hierfl.data.disclosure.check import data_rules, own_rows
from hierfl.data.disclosure.rule import Limits, Rule
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.formula_data import FormulaData, FormulaSite
from hierfl.data.formula.row_numbers import RowColumns

COLUMNS = {
    "y": Column("number"), "sick": Column("whole"), "hits": Column("whole"), "age": Column("number"),
    "flag": Column("flag"), "weight": Column("number"), "patient": Column("name"),
    "nurse": Column("name"),
    "stage": Column("category", ("I", "II", "III", "IV")), "sex": Column("category", ("f", "m")),
}  # fmt: skip


def table(n: int = 80) -> pd.DataFrame:
    """Patients of one hospital, 20 of each stage and half of each sex, five rows of each name."""
    rng, row = np.random.default_rng(0), np.arange(n)
    return pd.DataFrame(
        {
            "y": rng.normal(size=n), "sick": (row % 5 < 2).astype(int), "hits": rng.poisson(4, n),
            "age": rng.normal(60, 10, n).round(1), "flag": (row % 3 == 0).astype(int), "weight": 1.0 + row % 7,
            "patient": [f"p{k // 5}" for k in row], "nurse": [f"n{k % 11}" for k in row],
            "stage": np.array(["I", "II", "III", "IV"])[row % 4],
            "sex": np.array(["f", "m"])[(row // 4) % 2],
        }
    )  # fmt: skip


def site(formula: str, df: pd.DataFrame, family: str = "gaussian", **given: Any) -> FormulaSite:
    """One site of a study of a formula."""
    more = RowColumns(weights=given.pop("weights", ""), event=given.pop("event", ""))
    dictionary = Dictionary(COLUMNS)
    study = FormulaData(StudyFormula(formula, dictionary, family, more), "trial", **given)
    return FormulaSite(study, "north", dictionary.read(df, sorted(study.formula.used)), 0, df)


def broken(rules: list[Rule]) -> set[str]:
    """Names of the rules that do not hold."""
    return {rule.name for rule in rules if not rule.holds}


HONEST = [
    ("y ~ center(age) + stage + (1 | site)", "gaussian"),
    ("y ~ stage*sex + scale(age) + (1 + age | site)", "gaussian"),
    ("sick ~ where(age > 60, 1, 0) + sex + (1 | site)", "binomial"),
    ("hits ~ log(age) + flag + offset(log(weight)) + (1 | site)", "poisson"),
    ("stage ~ age + sex + (1 | site)", "ordinal"),
    ("y ~ age + (1 | site/patient)", "gaussian"),
    ("y ~ age + sex + (1 | site) + (1 | site:patient) + (1 | site:nurse)", "gaussian"),
    ("y ~ clip(age, 50, 70) + sign(age - 60) + (1 | site)", "gaussian"),
]


@pytest.mark.parametrize(("formula", "family"), HONEST)
def test_honest_studies_pass(formula: str, family: str) -> None:
    assert broken(data_rules(site(formula, table(), family), Limits())) == set()


def few(column: str, value: Any, rows: int) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Another value in the first rows, and nowhere else."""

    def changed(df: pd.DataFrame) -> pd.DataFrame:
        rest = df[df[column] != value].reset_index(drop=True)
        return rest.assign(**{column: [value] * rows + rest[column].tolist()[rows:]})

    return changed


def same(df: pd.DataFrame) -> pd.DataFrame:
    """The table as it is."""
    return df


SHOWN = [
    # DataSHIELD's nfilter.tab: a cell of a table.
    ("y ~ stage + (1 | site)", "gaussian", few("stage", "IV", 4), "cells of stage"),
    ("y ~ flag + (1 | site)", "gaussian", few("flag", 1, 3), "cells of flag"),
    ("sick ~ age + (1 | site)", "binomial", few("sick", 1, 2), "cells of sick"),
    ("stage ~ age + (1 | site)", "ordinal", few("stage", "III", 1), "cells of stage"),
    ("y ~ C(stage, Sum) + (1 | site)", "gaussian", few("stage", "IV", 2), "cells of stage"),
    ("y ~ hits + (1 | site)", "gaussian", lambda df: df.assign(hits=df.index % 2 + 2 * (df.index == 0)),
     "cells of hits"),
    # nfilter.subset: fewer rows by an interaction, a comparison, or another function.
    ("y ~ stage:sex + (1 | site)", "gaussian", lambda df: df.assign(sex=np.where(df.index < 9, "f", "m")),
     "cells of stage x sex"),
    ("y ~ age + (1 + stage:flag | site)", "gaussian", lambda df: df.assign(flag=(df.index < 9).astype(int)),
     "cells of stage x flag"),
    ("y ~ where(age > 60, 1, 0):sex + (1 | site)", "gaussian",
     lambda df: df.assign(age=np.where(df.sex == "f", 50.5 + df.index / 100, 70.5) + 12.0 * (df.index == 0)),
     "cells of where(age > 60, 1, 0) x sex"),
    ("y ~ sex + (1 + where(age > 60, 1, 0):sex | site)", "gaussian",
     lambda df: df.assign(age=np.where(df.sex == "f", 50.5 + df.index / 100, 70.5) + 12.0 * (df.index == 0)),
     "cells of where(age > 60, 1, 0) x sex"),
    ("y ~ where(age > 79, 1, 0) + (1 | site)", "gaussian", few("age", 79.5, 1), "condition age > 79"),
    ("y ~ {age <= 79} + (1 | site)", "gaussian", few("age", 79.5, 4), "condition age <= 79"),
    ("I(age > 79) ~ sex + (1 | site)", "binomial", few("age", 79.5, 4), "condition age > 79"),
    ("y ~ I(stage == 'IV') + (1 | site)", "gaussian", few("stage", "IV", 3), "condition stage == 'IV'"),
    ("y ~ np.where(center(age) > 20, age, 0) + (1 | site)", "gaussian", few("age", 85.5, 2),
     "condition center ( age ) > 20"),
    ("y ~ age + {sign(79 - age)*2} + (1 | site)", "gaussian", few("age", 79.5, 4), "condition (79 - age) < 0"),
    ("y ~ age + abs(79 - age) + (1 | site)", "gaussian", few("age", 79.5, 4), "condition (79 - age) < 0"),
    ("y ~ age + maximum(age, 79) + (1 | site)", "gaussian", few("age", 79.5, 4), "condition (age) > (79)"),
    ("y ~ age + clip(age, 1, 79) + (1 | site)", "gaussian", few("age", 79.5, 4), "condition (age) > (79)"),
    ("y ~ where(floor(age/79), 1, 0) + (1 | site)", "gaussian", few("age", 79.5, 4),
     "condition (floor ( age / 79 )) != 0"),
    # Columns and combinations of columns that are of few rows.
    ("y ~ floor(age/79) + (1 | site)", "gaussian", few("age", 79.5, 4), "rows that stand alone in a column"),
    ("y ~ tanh(20*(age - 79)) + (1 | site)", "gaussian", few("age", 79.5, 3), "rows that stand alone in a column"),
    ("y ~ {age**16} + (1 | site)", "gaussian", few("age", 160.0, 1), "largest share of a row"),
    ("y ~ exp(age) + (1 | site)", "gaussian", few("age", 160.0, 1), "largest share of a row"),
    ("y ~ age + {age + exp(9*(age - 120))} + (1 | site)", "gaussian", few("age", 121.0, 3),
     "combinations of the design's columns"),
    ("y ~ age + (1 | site)", "gaussian", lambda df: df.assign(weight=df.weight + 1e4 * (df.index == 0)),
     "largest weight"),
]  # fmt: skip


def test_few_groups_that_stand_alone_are_said_with_what_to_do() -> None:
    df = table(24).assign(age=lambda df: 50.0 + 7 * df.index.map(lambda k: min(k // 5, 3)))
    rules = data_rules(site("y ~ age + (1 | site/patient)", df), Limits())
    (margin,) = (rule.margin for rule in rules if rule.name == "rows that stand alone in a column")
    assert margin.startswith("age, all rows: 3 of 5 groups are away from where most lie, which none may be, or 5 and")
    assert "use levels of 5 groups" in margin


@pytest.mark.parametrize(("formula", "family", "change", "rule"), SHOWN, ids=[f"{f}-{r}" for f, _, _, r in SHOWN])
def test_what_would_show_few_rows_is_refused(
    formula: str, family: str, change: Callable[[pd.DataFrame], pd.DataFrame], rule: str
) -> None:
    given = {"weights": "weight"} if rule == "largest weight" else {}
    own = change(table().assign(age=lambda df: df.age.clip(40, 78)))
    assert rule in broken(data_rules(site(formula, own, family, **given), Limits()))


def test_counts_of_events_in_time_are_of_as_many_as_a_cell() -> None:
    """Fewer than five are counted with the next ones; a site that asks for more refuses them."""
    own = table(200).assign(y=lambda df: np.exp(df.y), flag=(np.arange(200) % 2))
    study = site("y ~ age + (1 | site)", own, "cox", event="flag")
    assert broken(data_rules(study, Limits())) == set()
    assert "counts of the response" in broken(data_rules(study, Limits(least_cell=12)))
    few = site("y ~ age + (1 | site)", own.assign(flag=(np.arange(200) < 4).astype(int)), "cox", event="flag")
    assert {"counts of the response", "cells of event flag"} <= broken(data_rules(few, Limits()))


def test_columns_for_each_row() -> None:
    """DataSHIELD's nfilter.glm: 0.33 parameters for each row; one row more is enough."""
    for n, holds in ((17, False), (19, True)):  # four fixed columns, two random ones
        own = table(n).assign(stage=["I"] * n, sex=np.array(["f", "m"])[np.arange(n) % 2])
        rules = data_rules(site("y ~ age*sex + (1 + age | site)", own), Limits())
        assert ("columns for each row" not in broken(rules)) == holds


def test_too_few_rows_are_said_whatever_else_could_be() -> None:
    for n in (1, 3, 9):
        assert "rows" in broken(data_rules(site("y ~ age + stage + (1 | site)", table(n)), Limits()))


def test_groups_inside_are_counted_not_their_rows() -> None:
    """Four patients of twenty rows each are too few; so is a stage that only four patients have."""
    formula, df = "y ~ stage + (1 | site/patient)", table()
    four = df.assign(patient=[f"p{k % 4}" for k in range(80)])
    assert "groups" in broken(data_rules(site(formula, four), Limits()))
    rare = df.assign(stage=np.where(df.patient.isin(["p0", "p1", "p2", "p3"]), "IV", "I"))
    assert broken(data_rules(site("y ~ stage + (1 | site)", rare), Limits())) == set()
    assert {"cells of stage", "rows that stand alone in a column"} <= broken(data_rules(site(formula, rare), Limits()))


def test_parts_that_are_held_out_are_looked_at_by_themselves() -> None:
    """Sums over all rows less those of training rows are those of the rest."""
    rules = data_rules(site("y ~ age + sex + (1 | site)", table(), test=0.1), Limits())
    assert {"test rows", "columns for each row"} <= broken(rules)
    large = table(400)
    own = site("y ~ age + sex + (1 | site)", large, test=0.3, validation=0.3)
    assert broken(data_rules(own, Limits())) == set()


def test_pairs_are_the_sites_own_choice() -> None:
    own = table().assign(sex=lambda df: np.where(df.index < 9, "f", "m"))
    study = site("y ~ stage + sex + (1 | site)", own)
    assert broken(data_rules(study, Limits())) == set()
    assert broken(data_rules(study, Limits(pairs=True))) == {"cells of sex x stage"}


def test_constants_are_those_of_all_sites_once_they_are_known() -> None:
    """A centre far away selects one row of a condition that halves the site's own."""
    own = site("y ~ where(center(age) > 0, 1, 0) + (1 | site)", table())
    assert broken(data_rules(own, Limits())) == set()
    n, largest = 1000.0, np.sort(own.df.age.to_numpy())[-2:]
    mean = largest.mean()
    totals = [{"n": np.array(n), "total": np.array([n * mean]), "square": np.array([n * (mean**2 + 100)])}]
    assert "condition center ( age ) > 0" in broken(data_rules(own, Limits(), totals))


@pytest.mark.parametrize("skewed", ["normal", "exponential", "lognormal"])
def test_honest_covariates_pass_however_skewed(skewed: str) -> None:
    """At least 18 of 20 sites of 25 rows with a lognormal column, and all with less skewed ones."""
    rng, passed = np.random.default_rng(1), 0
    for _ in range(20):
        df = table(25).assign(age=getattr(rng, skewed)(size=25), sex=np.resize(["f", "m"], 25))
        passed += not broken(data_rules(site("y ~ age + sex + (1 | site)", df), Limits()))
    assert passed >= (18 if skewed == "lognormal" else 20)


def test_names_of_other_characters() -> None:
    """Between backquotes; what is not printable is escaped, so that it hides no line."""
    more = {"age in years": Column("number"), "the sex": COLUMNS["sex"], "sex\x1b[8m": COLUMNS["sex"]}
    dictionary, df = Dictionary({**COLUMNS, **more}), table()
    df = df.assign(**{"age in years": df.age, "the sex": df.sex, "sex\x1b[8m": df.sex})

    def names(formula: str) -> set[str]:
        study = FormulaData(StudyFormula(formula, dictionary), "trial")
        rows = dictionary.read(df, sorted(study.formula.used))
        return {rule.name for rule in data_rules(FormulaSite(study, "north", rows, 0), Limits())}

    rule_names = names("y ~ where(`age in years` > 60, 1, 0)*`the sex` + (1 | site)")
    assert {"cells of where(age in years > 60, 1, 0) x the sex", "condition `age in years` > 60"} <= rule_names
    assert "cells of sex\\x1b[8m" in names("y ~ `sex\x1b[8m` + (1 | site)")


def test_a_networks_table(tmp_path: Any) -> None:
    """Categories, flags and labels by their cells; numbers by their sums; nothing of a design."""
    study = ColumnData(Dictionary(COLUMNS), ("age", "sex", "flag"), "stage", "trial", "linear", test=0.0)

    def broken_rules(df: pd.DataFrame, own: ColumnData = study) -> set[str]:
        df.to_csv(tmp_path / "own.csv", index=False)
        return broken(data_rules(own.site(tmp_path / "own.csv", "north"), Limits()))

    df = table()
    assert broken_rules(df) == set()
    assert broken_rules(few("sex", "m", 4)(df)) == {"cells of sex"}
    assert broken_rules(few("flag", 1, 4)(df)) == {"cells of flag"}
    assert broken_rules(few("stage", "IV", 4)(df)) == {"cells of stage"}
    assert broken_rules(few("age", 900.0, 1)(df)) == {"largest share of a row"}
    assert broken_rules(df.assign(age=50.0 + (df.index < 3))) == {"rows that stand alone in a column", "cells of age"}
    assert broken_rules(df, replace(study, test=0.1)) == {"test rows"}


def test_rows_are_looked_at_once_for_the_same_totals() -> None:
    own_site = site("y ~ center(age) + stage + (1 | site)", table())
    totals = [own_site.sums([])]
    rows = own_rows(own_site)
    assert own_rows(own_site) is rows
    assert own_rows(own_site, totals) is not rows
    assert own_rows(own_site, totals) is own_rows(own_site, list(totals))
    other = [{**totals[0], "total": totals[0]["total"] + 80.0}]
    assert own_rows(own_site, other) is not own_rows(own_site, totals)
