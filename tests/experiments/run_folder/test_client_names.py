"""Clients are called what their files call them, from the csv to every file of a run and back."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import Call

from hierfl import Federation
from hierfl.arviz_data import import_arviz
from hierfl.errors import UserError
from hierfl.experiments.build import build
from hierfl.experiments.configure import configure
from hierfl.experiments.run_folder.csv_files import escaped, read_frame, unescaped, write_frame, write_rows

pytestmark = pytest.mark.figures("blank")

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
    alike = "' 1' and '001' and '01' and '1' and '1 ' and '1.0'; ' a' and 'A' and 'a'"
    with pytest.raises(UserError, match=f"holds {alike}; .*; and 2 more, which differ"):
        federation_of("t.csv")
    federation = federation_of("t.csv", spellings="keep")
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
    assert sorted(federation_of("t.csv", spellings="keep").ids) == sorted(names)


def test_names_come_back_from_every_file_of_a_run(hierfl: Call) -> None:
    names = sorted(["1", "01", "1.0", "NA", "None", " a", "true", "1234567890123456789", *RUN])
    write_table(Path("t.csv"), names, each=8)
    options = (
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
        "--spellings",
        "keep",
        "-q",
    )
    assert hierfl("run", "mixed-effects", *options, "--out", "o") == (0, "", "")
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
    fit_to = {"formula": "y ~ x + (1 | site)", "rounds": 3, "test_fraction": 0.2, "spellings": "keep"}
    run = build(configure("mixed-effects", "t.csv", fit_to, {"draws": "20"}))[0].run(progress=False)
    predictions = {name: run.predict(np.array([[1.0, 0.3, 1.0]]), client=name)[0, 0].item() for name in names}
    assert len({round(value, 9) for value in predictions.values()}) == len(names)
    with pytest.raises(UserError, match="no client 'na'"):
        run.predict(np.array([[1.0, 0.3, 1.0]]), client="na")


@pytest.mark.figures
@pytest.mark.cpu(5, "what is mathematics is found by rendering all figures of a run and its page")
def test_names_with_dollars_are_drawn_and_are_no_mathematics(hierfl: Call) -> None:
    names = ["$\\frac{", "$\\foo$", "$a$b$", "a\\$", "<b>&", "a|b", "$\\mathdefault{\\foo}$", "$\\tau_j$"]
    write_table(Path("t.csv"), names, each=8)
    Path("t.csv").write_text(Path("t.csv").read_text().replace("y,x,site", "y,$\\bad$,site", 1))
    formula = "y ~ `$\\bad$` + (1 + `$\\bad$` | site)"
    options = (
        "--data", "t.csv", "--formula", formula, "-T", 2, "--test-fraction", 0.2, "--set", "draws=20", "-q", "--out",
        "o",
    )  # fmt: skip
    assert hierfl("run", "mixed-effects", *options) == (0, "", "")
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
        options = ("--data", "d.npz", "--split", "natural", "--network", "linear", "-T", 1, "-q", "--out", method)
        assert hierfl("run", method, *options) == (0, "", "")
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


def test_a_file_that_was_written_at_once_is_not_cut_off(tmp_path: Path) -> None:
    """A table of clients that ends within a number had been a report of fewer clients, one of them wrong."""
    path = tmp_path / "clients.csv"
    path.write_text("client,n\n01,3\n02,1")
    assert read_frame(path, ("client",))["n"].tolist() == [3, 1]
    with pytest.raises(UserError, match="is damaged: it is cut off"):
        read_frame(path, ("client",), whole=True)


def test_validation_rows_without_test_rows_leave_a_finished_run(tmp_path: Path, hierfl: Call) -> None:
    rng = np.random.default_rng(0)
    x, y, who = rng.normal(size=(80, 3)), np.arange(80) % 2, np.repeat(["a", "b"], 40)
    none = {"x_test": x[:0], "y_test": y[:0], "client_test": who[:0]}
    np.savez("d.npz", x_train=x, y_train=y, client_train=who, **none)
    options = (
        "--data", "d.npz", "--split", "natural", "--validation-fraction", 0.2, "--network", "linear", "-T", 1,
        "--out", "o",
    )  # fmt: skip
    assert hierfl("run", "fedavg", *options, "-q") == (0, "", "")
    assert Path("o/summary.json").is_file()
