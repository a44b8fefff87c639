"""`hierfl run --dp`: what it writes and says, which options it refuses, and what a comparison shows of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support import noisy
from support.commands import Call
from support.studies import patients

from hierfl import UserError
from hierfl.experiments.build import _from_table
from hierfl.experiments.configure import configure
from hierfl.experiments.report.run_page import write_run_page
from hierfl.experiments.run_folder.dp_lines import dp_lines
from hierfl.experiments.run_folder.summary import read_summary

SMALL = ("--data", "digits", "--clients", 4, "--rounds", 2, "--network", "linear", "--evaluate-every", 2)


@pytest.mark.cpu(15, "four runs on digits, a report and a comparison")
def test_a_run_with_noise_says_so_everywhere(hierfl: Call, tmp_path: Path) -> None:
    method = tmp_path / "noisy.py"
    shutil.copy(noisy.__file__, method)
    for epsilon in (1, 4):
        code, out, err = hierfl("run", method, *SMALL, "--dp", "site", "--epsilon", epsilon, "--out", f"e{epsilon}")
        assert code == 0, err
        text = " ".join(out.split())
        assert f"epsilon {epsilon}, delta 1e-05: everything that left the clients, together, for one patient" in text
        assert "this was a simulation: its noise follows from the seed" in text
    summary = read_summary(tmp_path / "e4")
    assert summary["dp"]["simulated"] is True
    assert summary["dp"]["epsilon"] == pytest.approx(4)
    assert summary["dp"]["patient_rows"] == 1
    assert 'dp = "site"' in (tmp_path / "e4" / "config.toml").read_text()
    page = write_run_page(tmp_path / "e4").read_text()
    assert "Differential privacy" in page
    assert "noise / sensitivity" in page
    code, out, err = hierfl("run", method, *SMALL, "--out", "plain")
    assert code == 0, err
    assert "dp" not in json.loads((tmp_path / "plain" / "summary.json").read_text())
    assert dp_lines(read_summary(tmp_path / "plain")) == []
    code, out, err = hierfl("compare", "e4", "e1", "plain", "--no-loo")
    assert code == 0, err
    words = " ".join(out.split())
    assert "noisy-sums, epsilon 4 against noisy-sums, epsilon 1, noisy-sums, no noise:" in words
    assert "epsilon 4.0, 1.0, 0.0" in words
    assert "UserWarning" not in err


def test_a_loose_delta_and_numbers_of_one_are_said(tmp_path: Path) -> None:
    part = {"share": 1.0, "releases": 1, "rate": 1.0, "multiplier": 1.0, "epsilon": 1.0}
    dp = {"level": "site", "unit": "patient", "epsilon": 1.0, "delta": 0.5, "parts": {"sums": part}, "simulated": True,
          "patient_rows": 1, "beyond": 1, "loose": 250}  # fmt: skip
    lines = dp_lines({"dp": dp})
    assert lines[0].endswith("together, for one patient with at most 1 row added or removed")
    assert lines[2].startswith("delta 0.5 is too large for 250 patients of a client:")
    assert lines[3] == "1 row is left out: of each patient the first row counts"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--dp", "site"), "epsilon is a number above 0 of a fit with noise"),
        (("--epsilon", 3), "and 0 without: here dp is 'none', and epsilon 3"),
        (("--dp", "client", "--epsilon", 3), "inside each site alone"),
        (("--dp", "patient", "--epsilon", 3), "dp"),
        (("--dp", "site", "--epsilon", 3, "--calibrate", "temperature"), "no share of epsilon"),
        (("--patient", "who"), "--patient"),
    ],
)
def test_what_cannot_be_is_one_line(more: tuple, words: str, hierfl: Call, tmp_path: Path) -> None:
    shutil.copy(noisy.__file__, tmp_path / "noisy.py")
    code, _, err = hierfl("run", tmp_path / "noisy.py", *SMALL, *more)
    assert code == 2
    assert words in " ".join(err.split())


def test_patients_of_a_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    df = patients(3)
    df["who"] = [f"p{k // 3}" for k in range(len(df))]
    df.to_csv(tmp_path / "rows.csv", index=False)
    how = {"formula": "y ~ age + (1 | site)", "dp": "site", "epsilon": 1.0, "patient": "who", "patient_rows": 2}
    run = configure("mixed-effects", str(tmp_path / "rows.csv"), how, {}).run
    federation, _ = _from_table(run)
    kept = df.groupby(["site", "who"]).head(2)
    assert sum(federation.sizes()) == len(kept) < len(df)
    assert federation.about["beyond"] == len(df) - len(kept)
    words = f"{len(df) - len(kept)} rows are left out: of each patient (column who) the first 2 rows count"
    assert words in caplog.text
    without = {**how, "dp": "none", "epsilon": 0.0, "patient_rows": 1}
    plain = configure("mixed-effects", str(tmp_path / "rows.csv"), without, {}).run
    with pytest.raises(UserError, match="says whom noise hides: --dp site"):
        _from_table(plain)
