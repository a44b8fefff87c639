"""`hierfl run`: what it leaves, that it is repeated by its seed, and what it overwrites."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call, ended, fork
from support.run_folders import SHORT, SMALL, Finished

from hierfl.experiments.methods import shipped_settings
from hierfl.experiments.run_folder.layout import lock_run_folder
from hierfl.models import PFedV


@pytest.mark.figures
@pytest.mark.cpu(4, "a run as most begin, and all its figures rendered")
def test_a_run_leaves_what_the_contract_says(hierfl: Call, tmp_path: Path) -> None:
    code, out, _ = hierfl("run", "pfedvem", "--rounds", 2)
    assert code == 0
    assert "pfedvem on digits: 20 clients, 2 rounds" in out
    assert "everything is in runs/0001-pfedvem-digits" in out
    folder = tmp_path / "runs/0001-pfedvem-digits"
    assert {p.name for p in folder.iterdir() if p.name != ".lock"} == {
        "config.toml", "metrics.csv", "clients.csv", "history.csv", "participation.csv", "influence.csv",
        "posterior.nc", "summary.json", "checkpoint", "figures", "model",
    }  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    wanted = [
        "method",
        "data",
        "clients",
        "rounds",
        "seed",
        "pm_accuracy",
        "gm_accuracy",
        "pm_nll",
        "pm_brier",
        "pm_ece",
        "worst10_accuracy",
        "accuracy_cv",
        "pm_accuracy_pooled",
        "seconds_per_round",
        "device",
        "versions",
        "pm_rmse",
        "pm_crps",
        "pm_coverage90",
        "best",
    ]
    assert set(wanted) <= summary.keys()
    assert summary["pm_rmse"] is None
    assert 0 < summary["pm_accuracy"] < 1
    assert summary["best"]["round"] in (1, 2)
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [(r["round"], r["split"]) for r in rows] == [
        ("1", "validation"),
        ("1", "test"),
        ("2", "validation"),
        ("2", "test"),
    ]
    assert float(rows[-1]["pm_accuracy"]) == summary["pm_accuracy"]
    clients = list(csv.DictReader((folder / "clients.csv").read_text().splitlines()))
    assert len(clients) == 20
    assert {"client", "n", "n_test", "accuracy", "nll", "ece", "tau", "deviation"} <= clients[0].keys()
    assert np.mean([float(c["accuracy"]) for c in clients]) == pytest.approx(summary["pm_accuracy"])
    for picture in (folder / "figures").glob("*.png"):
        assert picture.read_bytes()[:4] == b"\x89PNG"
    assert (folder / "figures/overview.png").stat().st_size > 20_000
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["run"]["split"] == "label-skew:5"
    assert config["settings"]["prior"] == "hierarchical"


def test_the_main_command_can_be_repeated(hierfl: Call, tmp_path: Path) -> None:
    for _ in range(2):
        assert hierfl("run", "fedavg", "--rounds", 0, "--quiet") == (0, "", "")
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "0001-fedavg-digits",
        "0002-fedavg-digits",
    ]


def test_a_configuration_is_repeated_by_its_seed(hierfl: Call, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert hierfl("run", "fedper", *SMALL, "--set", "batch=100", "--seed", seed, "--out", name)[0] == 0
    a, b, c = (
        {k: v for k, v in json.loads((tmp_path / n / "summary.json").read_text()).items() if k != "seconds_per_round"}
        for n in "abc"
    )
    assert a == b != c
    assert (tmp_path / "a/posterior.nc").read_bytes() == (tmp_path / "b/posterior.nc").read_bytes()


@pytest.mark.parametrize(
    "prior", ["fixed", *(pytest.param(prior, marks=pytest.mark.slow) for prior in ("hierarchical", "flat"))]
)
def test_the_ablation_is_one_word(prior: str, hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "pfedvem", *SMALL, "--prior", prior, "--out", "o")[0] == 0
    summary = json.loads((tmp_path / "o/summary.json").read_text())
    assert (summary["gm_accuracy"] is None) == (prior != "hierarchical")
    assert (summary["pm_draws_nll"] is None) == (prior == "flat")


def test_two_processes_do_not_share_a_folder(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    finished("fedavg", "o")
    before = {p: p.read_bytes() for p in (tmp_path / "o").rglob("*") if p.is_file()}
    with lock_run_folder(tmp_path / "o"):
        for command in (("--resume", "o"), ("fedavg", "--out", "o", "--overwrite")):
            code, _, err = hierfl("run", *command, "--quiet")
            assert (code, err) == (2, "error: another process is running in o\n")
    assert {p: p.read_bytes() for p in (tmp_path / "o").rglob("*") if p.is_file()} == before


def test_ctrl_c_says_how_to_go_on(hierfl: Call, tmp_path: Path) -> None:
    def listening() -> None:
        # a shell that runs the tests in the background has them ignore SIGINT, and they pass that on
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.alarm(60)

    assert hierfl("run", "fedavg", *SMALL, "--out", "first")[0] == 0  # what that imports, the child has
    child, start = fork(("run", "fedavg", "--rounds", "2000", "--out", "a[b] c"), listening), time.monotonic()
    while not (tmp_path / "a[b] c/metrics.csv").exists() and time.monotonic() - start < 60:
        time.sleep(0.05)
    os.kill(child, signal.SIGINT)
    assert ended(child) == 130
    err = (tmp_path / "out.txt").read_text()
    assert err.splitlines()[0] == "writing to a[b] c"
    assert err.splitlines()[-1] == "stopped; go on with: hierfl run --resume a[b] c"
    with lock_run_folder(tmp_path / "a[b] c"):  # the lock was released
        pass


def test_what_exists_is_not_overwritten_unasked(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/thoughts.txt").write_text("mine")
    for overwrite in ([], ["--overwrite"]):
        code, _, err = hierfl("run", "fedavg", *SHORT, "--out", "notes", *overwrite)
        assert (code, err.count("\n")) == (2, 1)
    assert (tmp_path / "notes/thoughts.txt").read_text() == "mine"
    assert hierfl("run", "fedavg", *SHORT, "--out", "o")[0] == 0
    before = (tmp_path / "o/summary.json").read_bytes()
    code, _, err = hierfl("run", "fedper", *SHORT, "--out", "o")
    assert code == 2
    assert "o exists; choose another --out, or say --overwrite" in err
    code, _, err = hierfl("run", "fedper", *SHORT, "--out", "o", "--overwrite", "--split", "label-skew:3")
    assert code == 2  # bad input is found before anything is touched
    assert (tmp_path / "o/summary.json").read_bytes() == before
    assert hierfl("run", "fedper", *SHORT, "--out", "o", "--overwrite")[0] == 0
    assert json.loads((tmp_path / "o/summary.json").read_text())["method"] == "fedper"


@pytest.mark.parametrize(
    ("pairs", "other"), [((), ""), (("lr=0.1",), ""), (("lr=0.05", "batch=7"), "lr=0.05, batch=7")]
)
def test_a_run_says_which_settings_are_not_the_chosen_ones(
    hierfl: Call, tmp_path: Path, pairs: tuple[str, ...], other: str
) -> None:
    settings, how = shipped_settings("fedavg", "digits")
    assert settings["lr"] == 0.1
    sets = [x for pair in pairs for x in ("--set", pair)]
    assert hierfl("run", "fedavg", *SHORT, *sets, "--out", "r")[0] == 0
    chosen = tomllib.loads((tmp_path / "r/config.toml").read_text())["run"]["settings_chosen"]
    assert chosen.startswith(how + (f"; other than that, as said: {other}" if other else "; that search had "))


def test_settings_that_say_nothing_are_not_inherited(hierfl: Call, tmp_path: Path) -> None:
    """What was chosen for the learned prior is left out where there is none; what was said so is refused."""
    assert "alpha" in shipped_settings("pfedv", "digits")[0]
    settings = {}
    for prior in ("hierarchical", "flat"):
        code, _, err = hierfl("run", "pfedv", "--rounds", 0, "--prior", prior, "--out", prior, "--quiet")
        assert code == 0, err
        settings[prior] = tomllib.loads((tmp_path / prior / "config.toml").read_text())["settings"]
    assert settings["hierarchical"]["alpha"] == 0.05
    assert settings["flat"]["alpha"] == PFedV.Settings().alpha
    assert settings["flat"]["lr"] == settings["hierarchical"]["lr"]
    code, _, err = hierfl("run", "pfedv", "--prior", "flat", "--set", "alpha=0.1")
    assert (code, err.strip()) == (2, "error: alpha=0.1 changes nothing with prior=flat")
    assert "(not with prior=flat)" in hierfl("methods", "pfedv")[1]
