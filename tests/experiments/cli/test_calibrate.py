"""`hierfl run --calibrate --conformal`: what the folder and the screen say, and what is refused in one line."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call

SMALL = ["--clients", 6, "--network", "mlp:8"]
HOW = ["--rounds", 3, "--evaluate-every", 3, "--draws", 5, "--calibrate", "temperature", "--conformal", 0.02]


@pytest.mark.cpu(5, "few examples or rounds have no temperature that can be told from 1")
def test_a_calibrated_run_says_what_it_has_found(hierfl: Call, tmp_path: Path) -> None:
    code, out, _ = hierfl("run", "pfedvem", *HOW, "--out", "one")
    assert code == 0
    assert re.search(r"temperature [0-9.]+ at the posterior mean: NLL [0-9.]+, now [0-9.]+, ECE [0-9.]+, now", out)
    assert re.search(r"temperature [0-9.]+ averaged draws: NLL", out)
    assert "sets that should hold the label in 98.0% hold it in" in out
    summary = json.loads((tmp_path / "one/summary.json").read_text())
    rows = list(csv.DictReader((tmp_path / "one/clients.csv").read_text().splitlines()))
    for kind in ("pm", "pm_draws"):
        assert summary[f"{kind}_temperature"] > 0
        assert {f"{kind}_tempered_{name}" for name in ("nll", "brier", "ece", "ece_pooled")} <= summary.keys()
    # of averaged draws: they are too timid after three rounds
    assert summary["pm_draws_temperature"] < 1
    assert summary["pm_draws_tempered_nll"] < summary["pm_draws_nll"]
    assert summary["set_alpha"] == 0.02
    assert sum(int(row["n_validation"]) for row in rows) == summary["calibration_examples"]
    assert np.mean([float(row["set_coverage"]) for row in rows]) == pytest.approx(summary["set_coverage"])
    assert np.mean([float(row["set_size"]) for row in rows]) == pytest.approx(summary["set_size"])
    config = tomllib.loads((tmp_path / "one/config.toml").read_text())
    assert (config["run"]["calibrate"], config["run"]["conformal"]) == ("temperature", 0.02)
    assert hierfl("run", "--resume", "one", "--quiet")[0] == 0
    again = json.loads((tmp_path / "one/summary.json").read_text())
    assert {k: v for k, v in again.items() if k != "seconds_per_round"} == {
        k: v for k, v in summary.items() if k != "seconds_per_round"
    }
    assert hierfl("report", "one", "--no-features")[0] == 0
    assert "Sets that should hold the label in 98.0% hold it in" in (tmp_path / "one/report.html").read_text()


def test_a_run_without_says_nothing_of_it(hierfl: Call, tmp_path: Path) -> None:
    code, out, _ = hierfl("run", "fedavg", *SMALL, "--rounds", 1, "--out", "plain")
    assert code == 0
    summary = json.loads((tmp_path / "plain/summary.json").read_text())
    assert not [name for name in summary if "temper" in name or name.startswith(("set_", "calibration"))]
    assert "set_coverage" not in (tmp_path / "plain/clients.csv").read_text()
    assert "temperature" not in out


def test_too_few_validation_examples_are_said(hierfl: Call) -> None:
    _, out, _ = hierfl("run", "fedavg", *SMALL, "--rounds", 1, "--conformal", 0.001)
    assert re.search(r"sets that should hold the label in 99\.9%: \d+ validation examples are too few", out)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--calibrate", "temperature", "--validation-fraction", 0], "calibrate=temperature is by validation data"),
        (["--conformal", 0.1, "--validation-fraction", 0], "conformal is by validation data, and there are none"),
        (["--calibrate", "isotonic"], "unknown value of --calibrate 'isotonic'"),
        (["--conformal", 1], "conformal must be 0"),
        (["--conformal", "nan"], "conformal must be 0"),
        (["--data", "fedpop-synthetic", "--conformal", 0.1], "this is a regression"),
    ],
)
def test_what_cannot_be_calibrated_is_one_line(options: list, line: str, hierfl: Call, tmp_path: Path) -> None:
    code, _, error = hierfl("run", "pfedvem", "--rounds", 1, *options)
    assert code == 2
    assert line in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_small_classes_get_the_option_that_holds_out_rows_of_every_client(hierfl: Call) -> None:
    """Few rows of each class: no fraction holds out any of them, and the message names what does."""
    few = ["--data", "digits", "--clients", 100, "--split", "iid", "--network", "linear", "--rounds", 1]
    few += ["--conformal", 0.1, "--validation-fraction", 0.5]
    code, _, error = hierfl("run", "fedavg", *few)
    assert code == 2
    assert (
        "if no client has ten rows of a class, validation_of=clients (--validation-of clients) in a simulation" in error
    )
    assert hierfl("run", "fedavg", *few, "--validation-of", "clients", "--quiet")[0] == 0


def test_a_table_has_no_classes(hierfl: Call) -> None:
    code, _, error = hierfl("run", "mixed-effects", "--conformal", 0.1)
    assert code == 2
    assert "--conformal is for data sets of arrays" in error
