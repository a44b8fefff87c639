"""`--no-rows`: run folders, and a site's results, in which nothing has an entry for each row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.rows_of_files import of_rows
from support.studies import FileStudy, written

from hierfl.arviz_data import group_names
from hierfl.arviz_io import BY_ROW, held_rows, loo, read, without_rows
from hierfl.errors import UserError
from hierfl.experiments.federate.draft import draft

#: rows of three clients: lengths that nothing else has
SIZES = (37, 43, 47)


def responses() -> pd.DataFrame:
    """Clients' rows; responses have four digits, which nothing else has."""
    rng = np.random.default_rng(3)
    site = np.repeat(["north", "south", "west"], SIZES)
    x = rng.normal(size=len(site)).round(2)
    y = (200 + x + rng.normal(size=len(site))).round(4)
    return pd.DataFrame({"y": y, "x": x, "ward": rng.integers(0, 5, len(site)).astype(str), "site": site})


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Path]:
    """The same as a table and as arrays."""
    df, paths = responses(), {name: tmp_path / f"all.{name}" for name in ("csv", "npz")}
    df.to_csv(paths["csv"], index=False)
    half = np.arange(len(df)) % 2 == 0
    parts = {
        f"{name}_{part}": value[where]
        for part, where in (("train", half | ~half), ("test", half))
        for name, value in (
            ("x", df[["x"]].to_numpy()),
            ("y", df["y"].to_numpy()),
            ("client", df["site"].to_numpy().astype(str)),
        )
    }
    np.savez(paths["npz"], **parts)
    return paths


FITS = {
    "mixed-effects": ("csv", "--formula", "y ~ x + (1 | site)", "--rounds", "4"),
    "levels": ("csv", "--formula", "y ~ x + (1 | site/ward)", "--rounds", "4", "--set", "draws=50"),
    "pfedvem": ("npz", "--network", "mlp:4", "--rounds", "2", "--validation-fraction", "0", "--draws", "5"),
}


@pytest.mark.cpu(4, "two fits, their figures and pages")
@pytest.mark.figures("blank")
@pytest.mark.parametrize(
    "what", ["mixed-effects", *(pytest.param(k, marks=pytest.mark.slow) for k in ("levels", "pfedvem"))]
)
def test_no_file_of_a_run_has_an_entry_for_each_row(
    what: str, data: dict[str, Path], tmp_path: Path, hierfl: Call
) -> None:
    kind, *options = FITS[what]
    method = "mixed-effects" if what == "levels" else what
    for out, more in (("with", ()), ("without", ("--no-rows",))):
        answer = hierfl("run", method, "--data", data[kind], *options, "--quiet", "--out", tmp_path / out, *more)
        assert answer[0] == 0, answer
        assert hierfl("report", tmp_path / out, "--quiet", "--no-features")[0] == 0
    y, sizes = responses()["y"].to_numpy(), {*SIZES, sum(SIZES)}
    assert len(of_rows(tmp_path / "with", sizes, y)) > 3  # the walk sees them
    assert of_rows(tmp_path / "without", sizes, y) == []
    ours, theirs = read(tmp_path / "with/posterior.nc"), read(tmp_path / "without/posterior.nc")
    assert set(group_names(ours)) - set(group_names(theirs)) == set(BY_ROW)
    for group in group_names(theirs):  # all else is the same, to the bit
        assert theirs[group].identical(ours[group])
    summaries = [json.loads((tmp_path / out / "summary.json").read_text()) for out in ("with", "without")]
    assert [summary["held_rows"] for summary in summaries] == [held_rows(ours), held_rows(theirs)]
    assert held_rows(ours) == {"groups": list(BY_ROW), "number": sum(SIZES), "clients": "all"}
    assert held_rows(theirs) == "none"
    assert not [p.name for p in (tmp_path / "without/figures").iterdir() if p.stem.startswith(("pred", "resid"))]
    assert "No file of this folder has an entry for each row" in (tmp_path / "without/report.html").read_text()


def test_leave_one_out_says_why_there_is_none(data: dict[str, Path], tmp_path: Path, hierfl: Call) -> None:
    kind, *options = FITS["mixed-effects"]
    fit = ("run", "mixed-effects", "--data", data[kind], *options, "--test-fraction", "0.2", "--quiet")
    for out, more in (("a", ("--seed", "0")), ("b", ("--seed", "0", "--set", "covariance=diagonal"))):
        assert hierfl(*fit, "--no-rows", *more, "--out", tmp_path / out)[0] == 0
    code, _, error = hierfl("compare", tmp_path / "a", tmp_path / "b", "--loo")
    assert (code, error.count("\n")) == (2, 1)
    assert "no log likelihoods of single rows" in error
    assert "--no-rows" in error
    with pytest.raises(UserError, match="run it again without"):
        loo(read(tmp_path / "a/posterior.nc"))
    answer = hierfl(*fit, "--no-rows", "--observed-data", "--out", tmp_path / "c")
    assert (answer[0], answer[2].count("\n")) == (2, 1)
    assert "say one of them" in answer[2]


@pytest.mark.cpu(4, "a fit, and its figures twice")
@pytest.mark.figures("blank")
def test_a_page_without_rows_of_a_run_with_them(data: dict[str, Path], tmp_path: Path, hierfl: Call) -> None:
    kind, *options = FITS["mixed-effects"]
    out = tmp_path / "o"
    assert hierfl("run", "mixed-effects", "--data", data[kind], *options, "--quiet", "--out", out)[0] == 0
    assert hierfl("report", out, "--quiet")[0] == 0
    assert "position in its predicted distribution" in (out / "report.html").read_text()
    assert hierfl("report", out, "--quiet", "--no-rows")[0] == 0
    text = (out / "report.html").read_text()
    assert "position in its predicted distribution" not in text
    assert f"posterior.nc has an entry for each of {sum(SIZES)} training rows of all clients" in text
    assert held_rows(without_rows(read(out / "posterior.nc"))) == "none"


@pytest.mark.cpu(6, "a study, and its figures twice")
@pytest.mark.figures("blank")
def test_results_of_a_site_without_rows(tmp_path: Path, hierfl: Call) -> None:
    """What an earlier report has drawn of single rows is gone, too."""
    df, sample = responses().drop(columns="ward"), tmp_path / "sample.csv"
    pd.DataFrame({"y": [200.5, 201.5], "x": [0.25, 1.5]}).to_csv(sample, index=False)
    files = {str(name): tmp_path / f"{name}.csv" for name in df["site"].unique()}
    for name, path in files.items():
        df[df["site"] == name].drop(columns="site").to_csv(path, index=False)
    options = {"formula": "y ~ x + (1 | site)", "rounds": 2}
    text = draft("mixed-effects", sample, list(files), "s", options, {"draws": 20}, out=tmp_path / "study.toml")
    study = FileStudy(written(tmp_path, text), files, tmp_path)
    study.serve()
    results, mine = study.site_folder("north") / "results", df["y"].to_numpy()[: SIZES[0]]
    assert hierfl("report", tmp_path / "north", "--quiet")[0] == 0
    assert of_rows(results, {SIZES[0]}, mine)
    assert (results / "figures/residuals.png").exists()
    assert hierfl("report", tmp_path / "north", "--quiet", "--no-rows")[0] == 0
    assert of_rows(results, {SIZES[0]}, mine) == []
    assert not (results / "figures/residuals.png").exists()
    assert json.loads((results / "summary.json").read_text())["held_rows"] == "none"
    assert of_rows(tmp_path / "server", {*SIZES, sum(SIZES)}, mine) == []
    assert json.loads((tmp_path / "server/summary.json").read_text())["held_rows"] == "none"
