"""Names of levels that come from several sites: one spelling of each, or a line that holds none of them."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hierfl.data.federated.design import StudyFormula
from hierfl.data.federated.dictionary import Column, Dictionary
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.study_reader import study_reader
from hierfl.data.formula.federate import from_formula
from hierfl.data.spellings import Spellings
from hierfl.errors import UserError

COLUMNS = {"y": Column("number"), "arm": Column("category", ("drug", "placebo")), "patient": Column("name")}


def site(name: str) -> pd.DataFrame:
    """Twenty rows of a site, of whom two patients are there in two spellings."""
    rng = np.random.default_rng(len(name))
    patient = [f"P{k % 4}" for k in range(20)]
    return pd.DataFrame(
        {"y": rng.normal(size=20), "arm": rng.permutation(["drug", "placebo"] * 10), "patient": patient}
    )


def soiled(df: pd.DataFrame) -> pd.DataFrame:
    return df.assign(
        arm=[f"{v.title()} " if k % 5 == 2 else v for k, v in enumerate(df.arm)],
        patient=[f"p{v[1:]}" if k % 7 == 3 else v for k, v in enumerate(df.patient)],
    )


def test_sites_spellings_are_refused_joined_or_no_levels() -> None:
    for how, words in (
        ("refuse", "column 'arm' has 4 values that differ from a level in blanks, capitals, .* or Unicode form alone: "
                   "data.spellings of study.toml = 'join' takes them for it"),
        ("arm=join", "column 'patient' has . names that differ from one another .* makes them one"),
        ("keep", "column 'arm' has 4 values that are none of its 2 levels"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words) as refused:
            Dictionary(COLUMNS, Spellings.from_choice(how)).read(soiled(site("a")), list(COLUMNS))
        assert "Drug" not in str(refused.value)
        assert "P3" not in str(refused.value)
    rows = Dictionary(COLUMNS, Spellings("join")).read(soiled(site("a")), list(COLUMNS))
    pd.testing.assert_frame_equal(rows, site("a")[list(COLUMNS)])


def test_a_joined_study_is_the_clean_pooled_table() -> None:
    study = StudyFormula("y ~ arm + (1 | site/patient)", Dictionary(COLUMNS, Spellings("join")))
    sites = {"a": site("a"), "bb": site("bb"), "ccc": site("ccc")}
    reader = study_reader(study, reduce(add, (study.first(soiled(df)) for df in sites.values())))
    pooled = pd.concat([df.assign(site=name) for name, df in sites.items()], ignore_index=True)
    wanted, _ = from_formula(pooled, "y ~ arm + (1 | site/patient)")
    for j, (name, df) in enumerate(sites.items()):
        own = reader.federation(soiled(df), name)
        np.testing.assert_array_equal(own.x.numpy(), wanted.x[wanted.train[j]].numpy())


def test_a_response_of_words_in_a_study_is_that_of_the_pooled_table() -> None:
    columns = {**COLUMNS, "well": Column("category", ("a~no", "yes"))}
    sites = {n: site(n).assign(well=lambda d: np.where(d.y > 0, "yes", "a~no")) for n in ("a", "bb", "ccc")}
    pooled = pd.concat([df.assign(site=name) for name, df in sites.items()], ignore_index=True)
    for response in ("well['a~no']", "I(well == 'yes')"):
        study = StudyFormula(f"{response} ~ arm + (1 | site)", Dictionary(columns), "binomial")
        reader = study_reader(study, reduce(add, map(study.first, sites.values())))
        wanted, _ = from_formula(pooled, f"{response} ~ arm + (1 | site)", family="binomial")
        own = [reader.federation(df, name).y.numpy() for name, df in sites.items()]
        np.testing.assert_array_equal(np.concatenate(own), wanted.y)


def test_a_dictionary_has_one_spelling_of_each_level() -> None:
    path, table = Path("study.toml"), {"arm": {"kind": "category", "levels": ["drug", "placebo", "Drug "]}}
    for how in ("refuse", "join"):
        with pytest.raises(
            UserError, match="column 'arm' has the levels 'Drug ' and 'drug', which differ in blanks.*leave"
        ):
            Dictionary.from_table(table, path, Spellings.from_choice(how))
    assert len(Dictionary.from_table(table, path, Spellings("keep")).columns["arm"].levels) == 3
    sample = soiled(site("a"))
    with pytest.raises(UserError, match="column 'arm' holds 'Drug ' and 'drug'; .*--spellings join makes them one"):
        Dictionary.from_sample(sample, ["y", "arm"])
    drafted = Dictionary.from_sample(sample, ["y", "arm"], spellings=Spellings("join"))
    assert drafted.columns["arm"].levels == ("drug", "placebo")
    with pytest.raises(UserError, match="unknown column 'Arm'; did you mean 'arm'"):
        Dictionary.from_sample(sample, ["Arm"])


def test_a_formula_compares_with_levels_of_the_dictionary() -> None:
    dictionary = Dictionary(COLUMNS)
    assert StudyFormula("y ~ I(arm == 'drug') + (1 | site)", dictionary)
    with pytest.raises(
        UserError, match="column 'arm' has no level 'Drug', which the formula names; .*did you mean 'drug'"
    ):
        StudyFormula("y ~ I(arm == 'Drug') + (1 | site)", dictionary)


def test_a_file_of_several_sites_has_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = FormulaData(StudyFormula("y ~ arm + (1 | site)", Dictionary(COLUMNS)), "trial")
    for names, lines in ((["north"] * 20, 0), (["north", "south"] * 10, 1)):
        caplog.clear()
        site("a").assign(site=names).to_csv(tmp_path / "own.csv", index=False)
        assert data.site(tmp_path / "own.csv", "north").rows == 20
        assert caplog.text.count("column 'site' holds 2 names, and all rows count as those of one site, north") == lines
