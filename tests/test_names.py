"""Clients are called what their files call them, from the csv to every file of a run and back."""

from __future__ import annotations

import csv
import os
import random
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Call

from hierfl import Federation
from hierfl.arviz_io import import_arviz
from hierfl.data import tables
from hierfl.data.client_names import client_names
from hierfl.data.formula.federate import from_formula
from hierfl.data.npz import load_npz
from hierfl.errors import UserError
from hierfl.experiments.build import build
from hierfl.experiments.configure import configure
from hierfl.experiments.run_folder.csv_files import escaped, read_frame, unescaped, write_frame, write_rows

#: every two of them are one to pandas, or to a spreadsheet, or something else than they were
MERGED = [
    "1", "01", "001", "1.0", "1e0", "+1", " 1", "1 ", "True", "TRUE", "true", "1234567890123456789",
    "1234567890123456788", "12345678901234567890", "12345678901234567891", "NA", "None", "nan", "N/A", "null", "a",
    "A", " a", "-5", "inf", "é", "e\u0301",
]  # fmt: skip
#: what a spreadsheet would run, and what would undo that
RUN = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "'=1", "''=1", "'", "'quoted'", '=HYPERLINK("x")']


def write_table(path: Path, names: list[str], each: int = 3, seed: int = 0) -> None:
    """y, x and site with so many rows of every name, in random order."""
    rng = np.random.default_rng(seed)
    rows = [(f"{rng.normal():.3f}", f"{rng.normal():.3f}", name) for name in names for _ in range(each)]
    random.Random(seed).shuffle(rows)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["y", "x", "site"])
        writer.writerows(rows)


def federation_of(path: str, formula: str = "y ~ x + (1 | site)", **more: object) -> Federation:
    """As the command line makes it."""
    config = configure("mixed-effects", path, {"formula": formula, **more}, {})
    return build(config)[0].federation


def test_clients_of_a_csv_are_exactly_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(Path("t.csv"), [*MERGED, *RUN])
    federation = federation_of("t.csv")
    assert sorted(federation.ids) == sorted([*MERGED, *RUN])
    assert federation.sizes() == [3] * len(federation.ids)
    assert federation.x[:, 1].dtype.is_floating_point


@pytest.mark.parametrize(
    "names",
    [["1", "01", "001", "2"], ["1234567890123456789", "1234567890123456788"], ["True", "TRUE", "true"], ["+1", "1"],
     ["1", "1.0", "1e0"], ["NA", "None", "nan"], [" a", "a", "a "]],
)  # fmt: skip
def test_names_that_pandas_takes_for_one_are_several(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(Path("t.csv"), names)
    assert sorted(federation_of("t.csv").ids) == sorted(names)


def test_names_come_back_from_every_file_of_a_run(hierfl: Call) -> None:
    names = sorted(["1", "01", "1.0", "NA", "None", " a", "true", "1234567890123456789", *RUN])
    write_table(Path("t.csv"), names, each=8)
    said = (
        "--data",
        "t.csv",
        "--formula",
        "y ~ x + (1 | site)",
        "-T",
        3,
        "--test-fraction",
        0.2,
        "--set",
        "draws=20",
        "-q",
    )
    assert hierfl("run", "mixed-effects", *said, "--out", "o") == (0, "", "")
    for name in ("clients", "history", "estimates"):
        frame = read_frame(Path(f"o/{name}.csv"), ("client", "effect"))
        assert sorted(set(frame["client"])) == names
    participation = read_frame(Path("o/participation.csv"))
    assert list(participation) == ["round", *names]
    posterior = import_arviz().from_netcdf("o/posterior.nc")
    assert posterior.posterior["client"].values.tolist() == names
    assert set(posterior.log_likelihood["client"].values.tolist()) == set(names)
    for path in Path("o").glob("*.csv"):
        with open(path, newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        runs = [c for c in cells if c[:1] in tuple("=+-@\uff1d\t\r") and not re.fullmatch(r"-?[0-9.]+(e-?\d+)?", c)]
        assert runs == [], path
    assert hierfl("report", "o", "-q") == (0, "", "")
    fit_to = {"formula": "y ~ x + (1 | site)", "rounds": 3, "test_fraction": 0.2}
    run = build(configure("mixed-effects", "t.csv", fit_to, {"draws": "20"}))[0].run(progress=False)
    said = {name: run.predict(np.array([[1.0, 0.3, 1.0]]), client=name)[0, 0].item() for name in names}
    assert len({round(value, 9) for value in said.values()}) == len(names)
    with pytest.raises(UserError, match="no client 'na'"):
        run.predict(np.array([[1.0, 0.3, 1.0]]), client="na")


def test_names_with_dollars_are_drawn_and_are_no_mathematics(hierfl: Call) -> None:
    names = ["$\\frac{", "$\\foo$", "$a$b$", "a\\$", "<b>&", "a|b", "$\\mathdefault{\\foo}$", "$\\tau_j$"]
    write_table(Path("t.csv"), names, each=8)
    Path("t.csv").write_text(Path("t.csv").read_text().replace("y,x,site", "y,$\\bad$,site", 1))
    formula = "y ~ `$\\bad$` + (1 + `$\\bad$` | site)"
    said = (
        "--data",
        "t.csv",
        "--formula",
        formula,
        "-T",
        2,
        "--test-fraction",
        0.2,
        "--set",
        "draws=20",
        "-q",
        "--out",
        "o",
    )
    assert hierfl("run", "mixed-effects", *said) == (0, "", "")
    assert hierfl("report", "o", "-q") == (0, "", "")
    assert sorted(read_frame(Path("o/clients.csv"), ("client",))["client"]) == sorted(names)
    assert "&lt;b&gt;&amp;" not in Path("o/clients.csv").read_text()
    assert "<b>&" not in Path("o/report.html").read_text()


def test_runs_of_such_clients_are_compared_client_by_client(hierfl: Call) -> None:
    names = sorted(["01", "1", "NA", "=1+1", "'=1+1", "True"])
    rng = np.random.default_rng(0)
    who = np.repeat(names, 12)
    x, y = rng.normal(size=(72, 3)), np.arange(72) % 2
    np.savez("d.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=who, client_test=who)
    for method in ("fedavg", "local"):
        said = ("--data", "d.npz", "--split", "natural", "--network", "linear", "-T", 1, "-q", "--out", method)
        assert hierfl("run", method, *said) == (0, "", "")
    assert hierfl("compare", "fedavg", "local", "--out", "c", "-q") == (0, "", "")
    gains = read_frame(Path("c/gains.csv"), ("over", "kind", "client"))
    assert sorted(set(gains["client"])) == names
    assert len(gains) == len(names)


@given(st.text())
def test_what_is_escaped_is_what_it_was_and_runs_nowhere(text: str) -> None:
    cell = escaped(text)
    assert unescaped(cell) == text
    assert cell[:1] not in tuple("=+-@\t\r\uff1d\uff0b\uff0d\uff20") or re.fullmatch(
        r"[+-][0-9.]+([eE][+-]?\d+)?", cell
    )


def test_frames_are_read_as_they_were_written(tmp_path: Path) -> None:
    frame = pd.DataFrame({"client": [*MERGED, *RUN], "=n": range(len(MERGED + RUN)), "value": -0.5})
    frame.loc[3, "value"] = np.nan
    write_frame(tmp_path / "f.csv", frame)
    pd.testing.assert_frame_equal(read_frame(tmp_path / "f.csv", ("client",)), frame, check_dtype=False)
    assert "'=n" in (tmp_path / "f.csv").read_text()
    write_rows(tmp_path / "r.csv", ["a", "b"], [{"a": "=1", "b": -1.5}, {"b": None}, {"a": "-2"}])
    assert (tmp_path / "r.csv").read_text() == "a,b\n'=1,-1.5\n,\n-2,\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,n\n01,x\n", "its column 'n' holds more than numbers"),
        ('client,n\n01\n"', "is damaged, or no csv file"),
        ("name,n\n01,3\n", "it has no column 'client'"),
    ],
)
def test_a_file_of_ours_that_was_changed_is_told_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text(text)
    with pytest.raises(UserError, match=words):
        read_frame(tmp_path / "clients.csv", ("client",), ("client", "n"))


# -- types of columns ----------------------------------------------------------------------------------------------


def test_strays_in_a_column_of_numbers_are_named(tmp_path: Path, hierfl: Call) -> None:
    lines = [f"{k % 7},{k * 0.5},s{k % 4},{k}" for k in range(40)]
    lines[4], lines[9], lines[20], lines[30] = "4,?,s0,4", "2,n.a.,s1,9", "6,1.5 mg,s0,20", "2,?,s2,30"
    Path("t.csv").write_text("\n".join(["y,x,site,other", *lines]) + "\n")
    how = ("run", "mixed-effects", "--data", "t.csv", "-T", 1, "-q", "--formula")
    code, out, err = hierfl(*how, "y ~ x + (1 | site)")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'x' holds numbers, but also '?' (line 6), 'n.a.' (line 11), '1.5 mg' (line 22) and 1 more" in err
    assert hierfl(*how, "y ~ other + (1 | site)", "--out", "o")[0] == 0  # (nobody asked for x)
    df = tables.read("t.csv")
    assert df["x"].map(type).eq(str).all()


def test_columns_have_the_types_that_their_entries_have(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "whole,number,truth,word,gap,mixed,huge,site\n"
        "1,1.5,True,u,1,1,12345678901234567890,1\n"
        "-2,1e-3,false,v,NA,x,1,NA\n"
        "03,inf,TRUE,NA,3,y, 2 ,01\n"
    )
    df = tables.read(str(tmp_path / "t.csv"), used=["whole", "number", "truth", "word", "gap", "huge"], text=["site"])
    assert [df[name].dtype.kind for name in ("whole", "number", "truth", "gap", "huge")] == list("ifbff")
    assert df["whole"].tolist() == [1, -2, 3]
    assert df["number"].tolist() == [1.5, 1e-3, np.inf]
    assert df["truth"].tolist() == [True, False, True]
    assert df["word"].isna().tolist() == [False, False, True]
    assert df["gap"].isna().tolist() == [False, True, False]
    assert df["mixed"].tolist() == ["1", "x", "y"]
    assert df["site"].tolist() == ["1", "NA", "01"]


def test_typed_columns_are_those_of_pandas_but_for_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {"a": rng.normal(size=200), "b": rng.integers(-9, 9, 200), "c": rng.choice(["u", "v"], 200)}
    pd.DataFrame(words).assign(d=lambda d: d.a.where(d.b > 0), e=lambda d: d.b > 2).to_csv(tmp_path / "t.csv")
    theirs, ours = pd.read_csv(tmp_path / "t.csv", float_precision="round_trip"), tables.read(str(tmp_path / "t.csv"))
    pd.testing.assert_frame_equal(ours, theirs)


def test_the_clients_column_is_no_number_beside(tmp_path: Path, hierfl: Call) -> None:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"y": rng.normal(size=40), "year": np.repeat(range(2000, 2010), 4)})
    df.to_csv("t.csv", index=False)
    how = ("run", "mixed-effects", "--data", "t.csv", "-T", 1, "-q", "--formula", "y ~ year + (1 | year)")
    code, _, err = hierfl(*how)
    assert (code, err) == (2, "error: column 'year' names the clients, which is text: as a number, it needs a copy\n")


FILES = [
    (b"y,x,x\n1,2,3\n", "two columns called 'x'"),
    (b"y,x,site\n1,2,a\n1,2\n", "line 3 has 2 entries, and the header 3"),
    (b"y,x,site\n1,2,a,4\n", "line 2 has 4 entries, and the header 3"),
    (b"y,x,site\n1,2,a\x00b\n", "NUL"),
    (b"y,x,site\n1,2,\xff\n", "cannot be read as csv"),
    (b'y,x,site\n1,2,"a\n', "cannot be read as csv"),
    (b"", "it is empty"),
    (b"y,x,site\n", "has no rows"),
    (b"y,x,site\n" + b"1,2," + b"a" * 300_000 + b"\n", "field larger than field limit"),
    (b"y,x,site\n1,2,\n2,1,b\n2,1,b\n", "column 'site' has 1 missing value"),
    (b"y,x,site\n1,2,a\x1b[31m\n2,1,b\n2,3,b\n", "names have no control characters"),
    (b"y,x,site\n1,2," + b"a" * 201 + b"\n2,1,b\n2,5,b\n", "a name of 201 characters, more than 200"),
    (b"y,x,site\n1,1e300,a\n2,1,a\n2,5,b\n", "column 'x' reaches 1e+300"),
    (b"y,x,site\n1e200,1,a\n2,1,a\n2,5,b\n", "column 'y' reaches 1e+200"),
]


@pytest.mark.parametrize(("content", "words"), FILES)
def test_files_that_are_no_tables_are_one_line(content: bytes, words: str, hierfl: Call) -> None:
    Path("t.csv").write_bytes(content)
    how = ("run", "mixed-effects", "--data", "t.csv", "-T", 1, "--formula", "y ~ x + (1 | site)")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        code, out, err = hierfl(*how)
    assert (code, out, err.count("\n"), seen) == (2, "", 1, [])
    assert words in err
    assert [path.name for path in Path.cwd().iterdir()] == ["t.csv"]


def test_a_table_is_a_regular_file(hierfl: Call) -> None:
    os.mkfifo("fifo.csv")
    Path("folder.csv").mkdir()
    how = ("run", "mixed-effects", "-T", 1, "--formula", "y ~ x + (1 | site)", "--data")
    for name, words in [("fifo.csv", "not a regular file"), ("folder.csv", "not a regular file")]:
        code, _, err = hierfl(*how, name)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
    code, _, err = hierfl(*how, "\udcff.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "is not valid UTF-8" in err


def test_bom_quotes_and_lines_in_cells_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes('\ufeffy,"a, b",site\r\n1,"two\nlines",x\r\n\r\n2,"say ""so""",y\r\n'.encode())
    df = tables.read(str(path), text=["site"])
    assert list(df) == ["y", "a, b", "site"]
    assert df["a, b"].tolist() == ["two\nlines", 'say "so"']
    assert df["y"].tolist() == [1, 2]


# -- names that are given in Python, or in arrays -------------------------------------------------------------------


def test_tables_of_ones_own_keep_their_types() -> None:
    df = pd.DataFrame({"y": np.random.default_rng(0).normal(size=12), "site": np.repeat([10, 2, 30], 4)})
    for site in (df.site, df.site.astype(str), df.site.astype("category"), df.site.astype("Int64")):
        federation, _ = from_formula(df.assign(site=site), "y ~ 1 + (1 | site)")
        assert federation.ids == ["10", "2", "30"]
    for site in (df.site.astype(float), df.site.astype(object).where(df.index > 3, 1.5)):
        with pytest.raises(UserError, match="clients are named by text or whole numbers|of several types"):
            from_formula(df.assign(site=site), "y ~ 1 + (1 | site)")
        with pytest.raises(UserError, match="clients are named by text or whole numbers"):
            Federation.from_frame(df.assign(site=site), client="site", y="y", x=["y"])
    with pytest.raises(UserError, match="holds '1' as int and as str"):
        client_names([1, "1"], "client")
    twice = pd.concat([df, df.rename(columns={"site": "y"})], axis=1)
    with pytest.raises(UserError, match="two columns called 'y'"):
        from_formula(twice, "y ~ 1 + (1 | site)")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["01", "1", "1.0"], ["01", "1", "1.0"]),
        ([True, False], ["True", "False"]),
        (np.array([b"a", "é".encode()]), ["a", "é"]),
        (np.array(["a", "b" * 150], dtype=object), ["a", "b" * 150]),
        (np.array([2**63 - 1, 2**63 - 2]), ["9223372036854775807", "9223372036854775806"]),
    ],
)
def test_names_are_text_whatever_holds_them(given: object, names: list[str]) -> None:
    assert client_names(given, "client").tolist() == names


@pytest.mark.parametrize(
    "given", [[1.0, 2.0], [np.nan], [None], ["a\0"], ["a\n"], ["\ud800"], [""], ["x" * 201], [b"\xff"], [(1, 2)], [1j]]
)
def test_what_is_no_name_is_refused(given: list[object]) -> None:
    with pytest.raises(UserError, match="client"):
        client_names(np.array(given, dtype=object) if isinstance(given[0], str) else given, "client")


def test_arrays_that_name_clients_by_decimals_are_refused(tmp_path: Path) -> None:
    x, y = np.ones((6, 2)), np.arange(6) % 2
    for who, words in [(np.arange(6.0), "named by text or whole numbers"), (np.array(["a\x1b"] * 6), "control")]:
        np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=who, client_test=who)
        with pytest.raises(UserError, match=words):
            load_npz(tmp_path / "d.npz")


def test_inputs_without_features_are_refused(tmp_path: Path) -> None:
    x, y = np.ones((6, 0)), np.arange(6) % 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(UserError, match=r"x_train has shape \(6, 0\): an input without features says nothing"):
        load_npz(tmp_path / "d.npz")
    with pytest.raises(UserError, match="without features"):
        Federation.from_arrays(x, y, ["a", "b"] * 3)


def test_validation_rows_without_test_rows_leave_a_finished_run(tmp_path: Path, hierfl: Call) -> None:
    rng = np.random.default_rng(0)
    x, y, who = rng.normal(size=(80, 3)), np.arange(80) % 2, np.repeat(["a", "b"], 40)
    none = {"x_test": x[:0], "y_test": y[:0], "client_test": who[:0]}
    np.savez("d.npz", x_train=x, y_train=y, client_train=who, **none)
    said = (
        "--data",
        "d.npz",
        "--split",
        "natural",
        "--validation-fraction",
        0.2,
        "--network",
        "linear",
        "-T",
        1,
        "--out",
        "o",
    )
    assert hierfl("run", "fedavg", *said, "-q") == (0, "", "")
    assert Path("o/summary.json").is_file()
