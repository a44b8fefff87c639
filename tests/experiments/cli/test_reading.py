"""Options of reading a table: a run keeps them, and goes on with them; sites have their own, and a study its levels."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.parties import Parties

from hierfl import load_run, read_table
from hierfl.data.formula.federate import from_formula
from hierfl.errors import UserError
from hierfl.experiments.federate.guard.policy import POLICY
from hierfl.experiments.federate.guard.simulated import PERMISSIVE_POLICY
from hierfl.experiments.predict.answers import Question, answered
from hierfl.experiments.predict.new_rows import NewRows
from hierfl.experiments.run_folder.config_file import read_config


def european(path: Path, rows: int = 40) -> pd.DataFrame:
    """A table as Excel writes it in half of Europe; what it holds."""
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"site": [f"s{k % 5}" for k in range(rows)], "age": rng.uniform(40, 60, rows).round(2)})
    df = df.assign(kids=np.array(["0", "1", "3+"])[np.arange(rows) % 3], y=rng.normal(size=rows).round(3))
    df.assign(age=df["age"].where(df.index != 7, -999)).to_csv(path, sep=";", decimal=",", index=False)
    return df.drop(index=7)


def test_a_run_is_repeated_as_its_table_was_read(hierfl: Call, tmp_path: Path) -> None:
    df = european(tmp_path / "excel.csv")
    df.assign(kids="n" + df["kids"]).to_csv("clean.csv", index=False)
    how = ("run", "mixed-effects", "--formula", "y ~ age + kids + (1 | site)", "--set", "draws=0", "-q", "--data")
    assert hierfl(*how, "clean.csv", "--out", "clean")[0] == 0
    declared = ("--decimal", ",", "--na", "drop", "--na", ".,-999", "--order", "kids=0<1<3+")
    code, _, err = hierfl(*how, "excel.csv", "--out", "out", *declared)
    assert (code, err) == (0, "")
    numbers = pd.read_csv("out/effects.csv")["estimate"]
    assert numbers.tolist() == pd.read_csv("clean/effects.csv")["estimate"].tolist()
    run = tomllib.loads(Path("out/config.toml").read_text())["run"]
    assert run["na"] == "drop"
    assert run["reading"] == {"decimal": ",", "na": [".", "-999"], "order": {"kids": ["0", "1", "3+"]}}
    Path("out/summary.json").unlink()
    assert hierfl("run", "--resume", "out", "-q")[0] == 0
    assert pd.read_csv("out/effects.csv")["estimate"].tolist() == numbers.tolist()
    code, _, err = hierfl("run", "--resume", "out", "--type", "kids=number")
    assert (code, "without --type" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--na", "drop,refuse"), "--na says both refuse and drop"), (("--sep", ""), "--sep is empty"),
        (("--type", "age"), "--type is given as COLUMN=VALUE, not 'age'"), (("--na", ""), "--na is empty"),
        (("--type", "age=date", "--type", "age=number"), "--type of column 'age' is given twice"),
        (("--type", "nope=date"), "unknown column 'nope'"), (("--order", "kids=0"), "at least two different levels"),
        (("--reference", "site=s1"), "column 'site' names the clients"), (("--sheet", "a"), "no .xlsx workbook"),
    ],
)  # fmt: skip
def test_options_that_say_nothing_are_one_line(
    options: tuple[str, ...], words: str, hierfl: Call, tmp_path: Path
) -> None:
    european(tmp_path / "excel.csv")
    how = ("run", "mixed-effects", "--data", "excel.csv", "--formula", "y ~ age + kids + (1 | site)")
    code, out, err = hierfl(*how, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    code, _, err = hierfl("run", "pfedvem", "--sep", ";")
    assert (code, err) == (2, "error: --sep is for tables, and digits is not one\n")


def test_a_study_has_levels_and_its_sites_have_files(hierfl: Call, tmp_path: Path) -> None:
    """The draft has the order that was said; how a site's file is written is the site's own matter."""
    df = european(tmp_path / "excel.csv")
    df[:12].drop(columns="site").to_csv("sample.csv", index=False)
    study = ("federate", "study", "mixed-effects", "--sample", "sample.csv", "--site", "a", "--site", "b")
    how = (*study, "--formula", "y ~ age + kids + (1 | site)")
    code, _, err = hierfl(*how)
    assert (code, "say --type kids=category for levels" in err) == (2, True)
    assert hierfl(*how, "--order", "kids=0<1<2<3+", "--na", "drop")[0] == 0
    result = tomllib.loads(Path("study.toml").read_text())
    assert result["columns"]["kids"] == {"kind": "category", "levels": ["0", "1", "2", "3+"]}
    assert result["data"]["na"] == "drop"
    assert "reading" not in result["data"]
    check = ("federate", "check", "study.toml", "--data", "excel.csv")
    code, _, err = hierfl(*check)
    assert (code, err.count("\n"), "say --decimal , to read" in err) == (2, 1, True)
    code, _, err = hierfl(*check, "--decimal", ",")
    assert (code, "say --na -999 if it is a missing value, or least and most of columns.age in study.toml" in err) == (
        2,
        True,
    )
    code, out, _ = hierfl(*check, "--decimal", ",", "--na", "-999")
    assert (code, "39 rows fit study" in out, "1 more row lacks a value" in out) == (0, True, True)
    assert "is said of a fit" in hierfl(*check, "--na", "drop")[2]
    assert ["drop, or refuse" in hierfl(*of, "--help")[1] for of in (check[:2], ("predict",), ("run",))] == [0, 0, 1]
    code, _, err = hierfl(*how, "--overwrite", "--type", "age=date")
    assert (code, "--type age=date says nothing to a study's sites" in err) == (2, True)


def test_a_site_keeps_how_its_file_is_read(hierfl: Call, tmp_path: Path) -> None:
    df = european(tmp_path / "excel.csv").drop(columns="site")
    df[:12].to_csv("sample.csv", index=False)
    how = ("federate", "study", "mixed-effects", "--sample", "sample.csv", "--site", "a", "--site", "b", "--na", "drop")
    assert hierfl(*how, "--formula", "y ~ age + kids + (1 | site)", "--type", "kids=category")[0] == 0
    parties = Parties.of(("a", "b"))
    parties.put_into(tmp_path / "study.toml")
    parties.save(tmp_path)
    (tmp_path / "a" / POLICY).write_text(PERMISSIVE_POLICY.text())
    approve = ("federate", "approve", "a", "--study", "study.toml", "--by", "Dr A")
    pins = ("--pin", "coordinator/coordinator.pub", "--pin", "b/b.pub")
    read = ("--data", "excel.csv", "--decimal", ",", "--na", "-999")
    code, out, err = hierfl(*approve, *pins, *read)
    assert code == 0, out + err
    (kept,) = Path("a/studies").glob("*/site.toml")
    stored = tomllib.loads(kept.read_text())
    assert stored["reading"] == {"decimal": ",", "na": ["-999"]}
    assert hierfl(*approve)[0] == 0
    assert tomllib.loads(kept.read_text()) == stored


def test_a_reference_is_what_the_others_are_compared_with(hierfl: Call, tmp_path: Path) -> None:
    """On the command line and in Python; the sign of a difference turns with it."""
    df = european(tmp_path / "excel.csv").assign(arm=lambda d: np.array(["drug", "placebo"])[d.index % 2])
    df.to_csv("t.csv", index=False)
    how = ("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ arm + (1 | site)", "--set", "draws=0", "-q")
    assert hierfl(*how, "--out", "drug")[0] == hierfl(*how, "--out", "placebo", "--reference", "arm=placebo")[0] == 0
    drug, placebo = (pd.read_csv(f"{name}/effects.csv").set_index("effect")["estimate"] for name in ("drug", "placebo"))
    assert placebo["arm[drug]"] == pytest.approx(-drug["arm[placebo]"], rel=1e-6)
    federation, design = from_formula(read_table("t.csv", reference={"arm": "placebo"}), "y ~ arm + (1 | site)")
    assert design.fixed == ("Intercept", "arm[drug]")
    new = federation.about["reader"](pd.DataFrame({"arm": ["placebo", "drug"]}))
    assert new[:, 1].tolist() == [0, 1]


def test_new_rows_are_read_by_the_options_of_the_run(hierfl: Call, tmp_path: Path) -> None:
    """New rows may lack the reference, and be of another form; an option of their own leaves the run's types."""
    pytest.importorskip("pyarrow")
    df = european(tmp_path / "excel.csv").assign(arm=lambda d: np.array(["drug", "placebo"])[d.index % 2])
    df = df.assign(ward=df.index % 3 + 1, day=[f"0{1 + k % 9}.02.2024" for k in range(len(df))])
    df.to_csv("t.csv", index=False, sep=";", decimal=",")
    how = ("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ age + arm + ward + day + (1 | site)")
    declared = ("--type", "ward=category", "--type", "day=date-dmy", "--reference", "arm=placebo")
    code, _, err = hierfl(*how, *declared, "--decimal", ",", "--set", "draws=20", "-q", "--out", "out")
    assert (code, err) == (0, "")
    rows = df.loc[df["arm"] == "drug"].drop(columns="y")[:3]
    rows.to_csv("comma.csv", index=False, sep=";", decimal=",")
    rows.to_csv("point.csv", index=False)
    rows.to_parquet("new.parquet")
    rows.assign(day=[day[6:] + day[2:6] + day[:2] for day in rows["day"]]).to_csv("iso.csv", index=False)
    rows.assign(day=[day.replace(".", "-") for day in rows["day"]], ward=[9, 1, 2]).to_csv("strange.csv", index=False)
    iso = ("iso.csv", "--decimal", ".", "--type", "day=date")
    asked = (("comma.csv",), ("point.csv", "--decimal", "."), ("new.parquet",), iso)
    answers = [hierfl("predict", "out", "--data", *of) for of in asked]
    assert [(code, err) for code, _, err in answers] == [(0, "")] * 4
    assert len({out for _, out, _ in answers}) == 1
    asked_json = Question(NewRows(rows.astype({"ward": str}), None))
    with pytest.raises(UserError, match="column 'day' is a date of the fit.* write days since 1970-01-01"):
        answered(load_run("out"), read_config(Path("out")).run, asked_json)
    for given in ((), ("--given", "t.csv")):
        code, _, err = hierfl("predict", "out", "--data", "comma.csv", "--new", *given)
        assert (code, "was fitted, and --new is of clients that were not" in err) == (2, True)
    code, _, err = hierfl("predict", "out", "--data", "strange.csv", "--decimal", ".")
    assert (code, "column 'ward' has the level '9'" in err) == (2, True)
