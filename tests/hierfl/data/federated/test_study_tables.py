"""Tables that stay at their sites: every site's columns are those of the pooled table, by sums alone."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.study_tables import DICTIONARY, FORMULAS, parts, pooled

from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.design_sums import DesignSums
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.study_reader import StudyReader, study_reader
from hierfl.data.federated.sums import Moments
from hierfl.data.formula.design import Design
from hierfl.data.formula.federate import from_formula
from hierfl.data.formula.row_numbers import RowColumns
from hierfl.errors import UserError


def prelude(study: StudyFormula, sites: dict[str, pd.DataFrame]) -> tuple[StudyReader, Design]:
    """Both rounds of sums."""
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in sites.values())))
    return reader, reader.design(reduce(add, (reader.second(rows) for rows in sites.values())))


@pytest.mark.parametrize(("formula", "family", "more"), FORMULAS)
def test_every_site_makes_the_pooled_columns(formula: str, family: str, more: RowColumns) -> None:
    """Levels that a site lacks included; and so does what is held out."""
    df = pooled()
    whole, design = from_formula(
        df.assign(
            grade=pd.Categorical(df.grade, [3, 1, 2]),
            stage=pd.Categorical(df.stage, ["I", "II", "III", "IV"], ordered=True),
        ),
        formula, family=family, **vars(more), test=0.2, validation=0.1, seed=3,
    )  # fmt: skip
    sites = parts(df)
    reader, study_design = prelude(StudyFormula(formula, DICTIONARY, family, more), sites)
    assert (study_design.fixed, study_design.random, study_design.family) == (
        design.fixed,
        design.random,
        design.family,
    )
    assert (study_design.extras, study_design.levels, study_design.blocks) == (
        design.extras,
        design.levels,
        design.blocks,
    )
    assert [study_design.centre, study_design.scale] == pytest.approx([design.centre, design.scale], 1e-12)
    for ours, theirs in (
        (study_design.fixed_units, design.fixed_units),
        (study_design.random_units, design.random_units),
    ):
        # Spreads are differences of squares, which lose digits.
        assert [*ours.centre, *ours.scale] == pytest.approx([*theirs.centre, *theirs.scale], 1e-9)
    for j, name in enumerate(whole.ids):
        own = reader.federation(sites[name], name, test=0.2, validation=0.1, seed=3)
        assert list(own.ids) == [name]
        for split in ("train", "validation", "test"):
            local_rows, pooled_rows = own.indices(split)[0], whole.indices(split)[j]
            torch.testing.assert_close(own.x[local_rows], whole.x[pooled_rows], rtol=2e-14, atol=2e-14)
            assert torch.equal(own.y[local_rows], whole.y[pooled_rows])


def test_moments_add_up() -> None:
    """Those of all rows, also where the mean is far from zero."""
    rows = np.random.default_rng(0).normal([2000.0, 1e6], [5.0, 0.1], (100, 2))
    centre = np.array([1990.0, 1e6])
    moments = Moments.from_columns(rows[:30], centre) + Moments.from_columns(rows[30:], centre)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-15)
    np.testing.assert_allclose(moments.sd, rows.std(0), rtol=1e-12)
    np.testing.assert_allclose(moments.rms, np.sqrt(np.square(rows).mean(0)), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"age": 412.0}, "column 'age' has 1 value outside of its range, 0 to 120"),
        ({"stage": "V-secret"}, "column 'stage' has 1 value that is none of its 4 levels"),
        ({"smokes": 2}, "column 'smokes' holds more than 0 and 1, and is declared a flag"),
        ({"hits": 1.5}, "column 'hits' holds decimals, and is declared whole"),
        ({"age": np.nan}, "column 'age' lacks 1 of its 50 values"),
        ({"y": np.inf}, "column 'y' holds numbers that are not finite"),
        ({"y": "high"}, "column 'y' holds words, and is declared a number"),
    ],
)
def test_a_site_that_does_not_fit_says_so_and_nothing_of_its_rows(change: dict, line: str) -> None:
    df = pooled().head(50).astype(dict.fromkeys(change, object))
    for name, value in change.items():
        df.loc[7, name] = value
    df = df.infer_objects()
    with pytest.raises(UserError) as refused:
        DICTIONARY.read(df, sorted(DICTIONARY.columns))
    assert str(refused.value) == line


def test_columns_that_are_not_there() -> None:
    study = StudyFormula("y ~ age + (1 | site)", DICTIONARY)
    with pytest.raises(UserError, match="no column 'age', which the study's dictionary has"):
        study.first(pooled().drop(columns="age"))
    with pytest.raises(UserError, match="the study's dictionary has; it has 'Age '$"):
        study.first(pooled().rename(columns={"age": "Age ", "smokes": "private"}))
    with pytest.raises(UserError, match="'y' holds truth values, and is declared a number"):
        study.first(pooled().assign(y=True))
    with pytest.raises(UserError, match="column 'weight' is not in the dictionary"):
        StudyFormula("y ~ weight + (1 | site)", DICTIONARY)


@pytest.mark.parametrize(
    ("formula", "line"),
    [
        ("y ~ bs(age, df=4) + (1 | site)", "bs\\(\\) is made of all rows"),
        (
            "y ~ poly(age, 2) + (1 | site)",
            "poly\\(\\) is made of all rows.* write the terms out, as in x \\+ I\\(x",
        ),
        ("y ~ scale(log(age)) + (1 | site)", "scale\\(\\) takes a plain column of numbers"),
        ("y ~ center(smokes) + (1 | site)", "center\\(\\) takes a plain column of numbers"),
        ("y ~ age", "has no random term"),
        ("age + (1 | site)", "has none"),
    ],
)
def test_what_no_sum_says_is_refused(formula: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        StudyFormula(formula, DICTIONARY)


@pytest.mark.parametrize(
    ("formula", "change", "line"),
    [
        ("y ~ 0 + smokes + (1 | site)", {"smokes": 0}, "every fixed effect of .* is zero in every row"),
        ("y ~ age + (1 + smokes | site)", {"smokes": 1}, "no site can inform the random slope of 'smokes'"),
        ("y ~ age + (1 | site)", {"y": 2.0}, "the response does not vary"),
    ],
)
def test_what_all_sites_together_do_not_say(formula: str, change: dict, line: str) -> None:
    sites = parts(pooled().assign(**change))
    with pytest.raises(UserError, match=line):
        prelude(StudyFormula(formula, DICTIONARY), sites)


@pytest.mark.parametrize(
    ("formula", "change"),
    [
        ("y ~ sex*stage + (1 | site)", {}),
        ("y ~ year + I(year - 1990) + I(year**2) + I((year - 2000)**2) + age + (1 | site)", {}),
        ("y ~ smokes + log(age) + grade + (1 | site)", {"smokes": 0}),
        ("y ~ 0 + age + I(3 * age) + stage + (1 | site)", {}),
        ("y ~ smokes + gap + I(gap + smokes) + (1 | site)", {}),
    ],
)
def test_dependent_columns_are_dropped_as_of_the_pooled_table(formula: str, change: dict) -> None:
    """An empty cell, another zero, a column that is a combination; every site leaves the same ones out."""
    df = pooled().assign(**change)
    df = df[~((df.sex == "m") & (df.stage == "III"))].reset_index(drop=True)
    grade = pd.Categorical(df.grade, [3, 1, 2])
    whole, design = from_formula(df.assign(grade=grade), formula)
    study, sites = StudyFormula(formula, DICTIONARY), parts(df)
    full = study_reader(study, reduce(add, (study.first(rows) for rows in sites.values())))
    sums = reduce(add, (full.second(rows) for rows in sites.values()))
    reader, study_design = full.reduced(sums), full.design(sums)
    assert study_design.fixed == reader.fixed == reader.design(sums).fixed == design.fixed
    assert reader.reader.dropped == whole.about["dropped"]
    assert [*study_design.fixed_units.centre, *study_design.fixed_units.scale] == pytest.approx(
        [*design.fixed_units.centre, *design.fixed_units.scale], 1e-9
    )
    np.testing.assert_allclose(study_design.fixed_correlation, design.fixed_correlation, atol=1e-9)
    for j, name in enumerate(whole.ids):
        own = reader.federation(sites[name], name)
        torch.testing.assert_close(own.x[own.train[0]], whole.x[whole.train[j]], rtol=2e-14, atol=2e-14)


def test_sums_of_a_version_before_still_make_the_columns() -> None:
    """They lack what dependent columns are seen by; these were refused then."""
    study, sites = StudyFormula("y ~ age + stage + (1 | site)", DICTIONARY), parts(pooled())
    reader = study_reader(study, reduce(add, (study.first(rows) for rows in sites.values())))
    sums = reduce(add, (reader.second(rows) for rows in sites.values()))
    before = {name: value for name, value in sums.sums().items() if name != "products"}
    old = DesignSums.named(before, 0.0)
    assert reader.reduced(old) is reader
    assert reader.design(old).fixed == reader.design(sums).fixed


def test_a_category_of_the_dictionary_keeps_its_order() -> None:
    """Levels that are whole numbers are levels, and the first of the list is the reference, as in pandas."""
    _, design = prelude(StudyFormula("y ~ grade + (1 | site)", DICTIONARY), parts(pooled()))
    assert design.fixed == ("Intercept", "grade[1]", "grade[2]")
    dictionary = Dictionary({**DICTIONARY.columns, "sex": Column("category", ("m", "f"))})
    _, design = prelude(StudyFormula("y ~ sex + (1 | site)", dictionary), parts(pooled()))
    assert design.fixed == ("Intercept", "sex[f]")


def test_one_site_is_no_study() -> None:
    single = dict(list(parts(pooled()).items())[:1])
    with pytest.raises(UserError, match="there is one site"):
        prelude(StudyFormula("y ~ age + (1 | site)", DICTIONARY), single)


def test_a_dictionary_is_a_table_of_toml() -> None:
    """There and back; a draft from a sample; and what is wrong with one is said by its column."""
    path = Path("study.toml")
    assert Dictionary.from_table(DICTIONARY.as_table(), path) == DICTIONARY
    draft = Dictionary.from_sample(pooled(), ["age", "hits", "sex", "smokes"])
    assert draft.columns["sex"] == Column("category", ("f", "m"))
    assert [draft.columns[name].kind for name in ("age", "hits", "smokes")] == ["number", "whole", "whole"]
    for column, line in [
        ({"kind": "text"}, "columns.a: unknown kind of a column 'text'"),
        ({"kind": "category"}, "columns.a: a category has levels"),
        ({"kind": "number", "levels": ["x"]}, "columns.a: a category has levels"),
        ({"kind": "category", "levels": ["x", "x"]}, "columns.a: the levels of a category differ"),
        ({"kind": "number", "least": 3, "most": 1}, "columns.a: a range goes from less to more"),
        ({"kind": "flag", "least": 0}, "columns.a: only numbers have a range"),
        ({"kind": "number", "colour": "red"}, "columns.a has 'colour'"),
        ({}, "columns.a.kind is missing"),
    ]:
        with pytest.raises(UserError, match=line):
            Dictionary.from_table({"a": column}, path)
