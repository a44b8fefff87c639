"""The command line: what it leaves, and how it answers bad input."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call, command

from hierfl import Federation, UserError
from hierfl.data.datasets import registry
from hierfl.experiments.methods import shipped_settings
from hierfl.experiments.run_folder.layout import lock_run_folder
from hierfl.inference import fit
from hierfl.models import FedAvg, PFedV
from hierfl.nn.networks.build import architecture

SHORT = ("--rounds", 2, "--quiet")


def test_a_run_leaves_what_the_contract_says(hierfl: Call, tmp_path: Path) -> None:
    code, out, _ = hierfl("run", "pfedvem", "--rounds", 2)
    assert code == 0
    assert "pfedvem on digits: 20 clients, 2 rounds" in out
    assert "everything is in runs/0001-pfedvem-digits" in out
    folder = tmp_path / "runs/0001-pfedvem-digits"
    assert {p.name for p in folder.iterdir() if p.name != ".lock"} == {
        "config.toml", "metrics.csv", "clients.csv", "history.csv", "participation.csv", "posterior.nc", "summary.json",
        "checkpoint", "figures",
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
        assert hierfl("run", "fedper", *SHORT, "--seed", seed, "--out", name)[0] == 0
    a, b, c = (
        {k: v for k, v in json.loads((tmp_path / n / "summary.json").read_text()).items() if k != "seconds_per_round"}
        for n in "abc"
    )
    assert a == b != c
    assert (tmp_path / "a/posterior.nc").read_bytes() == (tmp_path / "b/posterior.nc").read_bytes()


@pytest.mark.parametrize("prior", ["hierarchical", "fixed", "flat"])
def test_the_ablation_is_one_word(prior: str, hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "pfedvem", *SHORT, "--prior", prior, "--out", "o")[0] == 0
    summary = json.loads((tmp_path / "o/summary.json").read_text())
    assert (summary["gm_accuracy"] is None) == (prior != "hierarchical")
    assert (summary["pm_draws_nll"] is None) == (prior == "flat")


def test_an_npz_of_ones_own_with_its_own_clients(hierfl: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y, who = np.arange(120) % 3, np.repeat(["north", "south", "west"], 40)
    x = rng.normal(size=(120, 4)) + y[:, None]
    np.savez(
        tmp_path / "mine.npz", x_train=x[::2], y_train=y[::2], client_train=who[::2], x_test=x[1::2], y_test=y[1::2],
        client_test=who[1::2],
    )  # fmt: skip
    assert hierfl("run", "pfedvem", "--data", "mine.npz", *SHORT, "--out", "o")[0] == 0
    clients = list(csv.DictReader((tmp_path / "o/clients.csv").read_text().splitlines()))
    assert [c["client"] for c in clients] == ["north", "south", "west"]
    assert hierfl("run", "pfedvem", "--data", "mine.npz", "--split", "iid", *SHORT)[0] == 2


def test_a_regression_is_evaluated_as_one(hierfl: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(200, 3)), np.repeat(np.arange(10), 20)
    y = x @ [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=200)
    np.savez(
        tmp_path / "lines.npz", x_train=x[::2], y_train=y[::2], client_train=who[::2], x_test=x[1::2], y_test=y[1::2],
        client_test=who[1::2],
    )  # fmt: skip
    code, out, _ = hierfl(
        "run", "pfedvem", "--data", "lines.npz", "--network", "linear", "--response-sd", 0.3, "--rounds", 40,
        "--set", "head_lr=1e-3", "--evaluate-every", 20, "--out", "o",
    )  # fmt: skip
    assert code == 0
    assert "rmse" in out
    summary = json.loads((tmp_path / "o/summary.json").read_text())
    assert summary["pm_accuracy"] is None
    assert 0.25 < summary["pm_rmse"] < 0.4  # the noise is 0.3
    assert 0.8 < summary["pm_draws_coverage90"] <= 0.98
    assert summary["gm_rmse"] < 0.4


def test_two_processes_do_not_share_a_folder(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "fedavg", *SHORT, "--out", "o")[0] == 0
    before = {p: p.read_bytes() for p in (tmp_path / "o").rglob("*") if p.is_file()}
    with lock_run_folder(tmp_path / "o"):
        for command in (("--resume", "o"), ("fedavg", "--out", "o", "--overwrite")):
            code, _, err = hierfl("run", *command, "--quiet")
            assert (code, err) == (2, "error: another process is running in o\n")
    assert {p: p.read_bytes() for p in (tmp_path / "o").rglob("*") if p.is_file()} == before


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    # a shell that runs the tests in the background has them ignore SIGINT, and they pass that on
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from hierfl.experiments.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "fedavg", "--rounds", "2000", "--out", "a[b] c"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        start = time.monotonic()
        while not (tmp_path / "a[b] c/metrics.csv").exists() and time.monotonic() - start < 60:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.splitlines()[0] == "writing to a[b] c"
    assert err.splitlines()[-1] == "stopped; go on with: hierfl run --resume a[b] c"
    with lock_run_folder(tmp_path / "a[b] c"):  # (the lock was released)
        pass


def test_bare_command_shows_its_help(hierfl: Call) -> None:
    code, out, err = hierfl()
    assert code == 2
    assert "Commands:" in out + err
    assert "error:" not in err


def test_lists(hierfl: Call) -> None:
    code, out, _ = hierfl("methods")
    assert code == 0
    assert all(name in out for name in ("pfedvem", "local", "fedavg", "fedper", "fedrep"))
    code, out, _ = hierfl("methods", "pfedvem")
    assert code == 0
    assert all(name in out for name in ("sigma_0", "head_lr", "prior", "on digits: head_lr="))
    code, out, _ = hierfl("datasets")
    assert code == 0
    assert all(name in out for name in ("digits", "FILE.npz", "label-skew:C", "dirichlet:BETA"))
    assert hierfl("--version")[0] == 0


def npz(path: Path, **change: object) -> Path:
    arrays = {
        "x_train": np.zeros((12, 3)), "y_train": np.arange(12) % 3,
        "x_test": np.zeros((6, 3)), "y_test": np.arange(6) % 3,
    }  # fmt: skip
    np.savez(path, **{k: v for k, v in {**arrays, **change}.items() if v is not None})
    return path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "which method? known: pfedvem, fedpop, mixed-effects, pfedv, fedv, pfedvmp, local"),
        (
            ["run", "pfedvme"],
            "unknown method 'pfedvme'; known: pfedvem, fedpop, mixed-effects, pfedv, fedv, pfedvmp,",
        ),
        (["run", "absent.py"], "no file absent.py"),
        (
            ["run", "pfedvem", "--data", "digts"],
            "unknown data set 'digts'; known: digits, mnist, fashion-mnist, emnist, cifar10, ",
        ),
        (["run", "pfedvem", "--data", "absent.npz"], "absent.npz; it should be an .npz with x_train"),
        (["run", "pfedvem", "--split", "labels:5"], "unknown split 'labels'; known: label-skew:C"),
        (["run", "pfedvem", "--split", "label-skew:3"], "take a divisor of 10"),
        (["run", "pfedvem", "--prior", "flatt"], "unknown prior 'flatt'; known: hierarchical, fixed, flat"),
        (["run", "fedavg", "--prior", "flat"], "fedavg has no prior to choose"),
        (["run", "pfedvem", "--prior", "flat", "--set", "prior=fixed"], "prior is set twice"),
        (["run", "pfedvem", "--prior", "flat", "--set", "tau=deviation"], "tau=deviation changes nothing"),
        (["run", "pfedvem", "--overwrite"], "--overwrite replaces the run in --out; say which"),
        (["run", "pfedvem", "--response-sd", "5"], "--response-sd is a regression's"),
        (["run", "pfedvem", "--network", "mlp:99999999999"], "does not fit into memory"),
        (["run", "pfedvem", "--device", "meta"], "device 'meta' is not there"),
        (
            ["run", "--resume", "absent", "--rounds", "3"],
            "--resume goes on with what the run's folder says, without --rounds",
        ),
        (["run", "pfedvem", "--rounds", "1", "--out", "/dev/null/x"], "/dev/null is no folder"),
        (
            ["run", "pfedvem", "--set", "sigma=1"],
            "unknown setting of pfedvem 'sigma'; known: prior, tau, sigma_0",
        ),
        (["run", "pfedvem", "--set", "sigma_0"], "settings are said as KEY=VALUE"),
        (["run", "pfedvem", "--set", "sigma_0=big"], "sigma_0 must be a number, not 'big'"),
        (["run", "pfedvem", "--set", "sigma_0=nan"], "sigma_0 must be finite"),
        (["run", "pfedvem", "--set", "sigma_0=0"], "sigma_0 must be above 0"),
        (["run", "pfedvem", "--set", "particles=2.5"], "particles must be a whole number"),
        (["run", "pfedvem", "--set", "particles=0"], "particles must be at least 1"),
        (["run", "pfedvem", "--rounds", "many"], "Invalid value for '--rounds'"),
        (["run", "pfedvem", "--rounds", "-1"], "rounds must be at least 0, not -1"),
        (["run", "pfedvem", "--clients", "0"], "at least one client, not 0"),
        (["run", "pfedvem", "--clients", "-4"], "at least one client, not -4"),
        (["run", "pfedvem", "--clients", "99999"], "99999 clients are more than the data allow"),
        (["run", "pfedvem", "--clients", "1400"], "too few for the 700 clients"),
        (["run", "pfedvem", "--split", "dirichlet:0.01"], "let it redraw: --split dirichlet:0.01,redraw"),
        (["run", "pfedvem", "--participation", "0"], "participation must lie in (0, 1], not 0"),
        (["run", "pfedvem", "--participation", "1.5"], "participation must lie in (0, 1], not 1.5"),
        (["run", "pfedvem", "--participation", "nan"], "participation must lie in (0, 1], not nan"),
        (["run", "pfedvem", "--validation-fraction", "1"], "validation must be a fraction in [0, 1)"),
        (["run", "pfedvem", "--chunk", "-1"], "chunk must be at least 0"),
        (["run", "pfedvem", "--quorum", "21"], "quorum of 21 cannot be reached by 20 clients"),
        (["run", "pfedvem", "--network", "mlp:0"], "network mlp is written mlp:H,H,..., with whole"),
        (["run", "pfedvem", "--network", "resnet"], "unknown network 'resnet'; known: linear"),
        (["run", "pfedvem", "--response-sd", "0"], "noise must be a number above zero"),
        (["run", "pfedvem", "--device", "cuda:97"], "device 'cuda:97' is not there; available: cpu"),
        (["run", "pfedvem", "--device", "abacus"], "device 'abacus' is not there"),
        (["run", "pfedvem", "--seed", "-1"], "seed must be at least 0"),
        (["run", "--resume", "absent"], "absent is not the folder of a run: it has no config.toml"),
        (["run", "pfedvem", "--resume", "absent"], "absent is not the folder of a run: it has no config.toml"),
        (["run", "pfedvem", "--colour", "red"], "No such option"),
        (["walk"], "No such command"),
        (["methods", "pfed"], "unknown method 'pfed'"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(arguments: list[str], words: str, hierfl: Call, tmp_path: Path) -> None:
    code, out, err = hierfl(*arguments)
    assert code == 2
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y_train": None}, "lacks y_train"),
        ({"x_train": np.array([{}] * 12, dtype=object)}, "x_train cannot be read without pickle"),
        ({"x_test": np.zeros((6, 9))}, "do not fit together"),
        ({"x_train": np.full((12, 3), np.nan)}, "NaN"),
        ({"y_test": np.full(6, 7)}, "out of the range 0..2"),
    ],
)
def test_files_that_cannot_be_used(change: dict, words: str, hierfl: Call, tmp_path: Path) -> None:
    npz(tmp_path / "bad.npz", **change)
    code, _, err = hierfl("run", "pfedvem", "--data", "bad.npz", "-J", 2, "--split", "iid")
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not (tmp_path / "runs").exists()


def test_a_file_of_another_kind(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("a,b")
    code, _, err = hierfl("run", "pfedvem", "--data", "table.txt")
    assert (code, err) == (2, "error: table.txt is no .npz file\n")


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


def test_checkpoints_that_cannot_be_used(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "fedavg", *SHORT, "--out", "o")[0] == 0

    def refused(words: str, spoil: Callable[[Path], object]) -> None:
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        shutil.copytree(tmp_path / "o", tmp_path / "c")
        spoil(tmp_path / "c")
        before = (tmp_path / "c/summary.json").read_bytes()
        code, _, err = hierfl("run", "--resume", "c")
        assert (code, err.count("\n")) == (2, 1), err
        assert words in err
        assert (tmp_path / "c/summary.json").read_bytes() == before

    def state(folder: Path) -> Path:
        return next((folder / "checkpoint").glob("*.safetensors"))

    def change(folder: Path, old: str, new: str) -> None:
        config = folder / "config.toml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))

    refused("is truncated or has been changed", lambda f: state(f).write_bytes(state(f).read_bytes()[:-100]))
    refused("lacks state-", lambda f: state(f).unlink())
    refused("is damaged", lambda f: (f / "checkpoint/checkpoint.json").write_text("{"))
    refused("is no hierfl checkpoint", lambda f: (f / "checkpoint/checkpoint.json").write_text("{}"))
    refused("no checkpoint in", lambda f: shutil.rmtree(f / "checkpoint"))
    refused("config.toml is damaged", lambda f: (f / "config.toml").write_text("= ="))
    refused("config.toml is damaged: run is missing", lambda f: (f / "config.toml").write_text("a = 1"))
    refused("has changed since", lambda f: change(f, 'method_digest = "', 'method_digest = "0'))
    refused("rounds is 'ten'", lambda f: change(f, "rounds = 2", 'rounds = "ten"'))
    refused("seed is missing", lambda f: change(f, "seed = 0", ""))
    refused("belongs to another method, network or federation", lambda f: change(f, "mlp:64", "mlp:32"))
    refused("holds other data than c was run on, or splits them otherwise", lambda f: change(f, "seed = 0", "seed = 1"))


def test_help_is_fast_and_heavy_imports_wait() -> None:
    command = [sys.executable, "-m", "hierfl", "--help"]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1
    heavy = ("torch", "pyro", "arviz", "pandas", "matplotlib", "sklearn")
    code = f"import sys, hierfl.experiments.cli; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_settings_are_chosen_on_validation_data_and_searches_go_on(hierfl: Call, tmp_path: Path) -> None:
    out = tmp_path / "search.json"
    arguments = ["search", "fedavg", "--rounds", "2", "--seeds", "2", "--out", str(out)]
    command(*arguments, "lr=0.001,0.05")
    first = json.loads(out.read_text())
    assert [c["settings"]["lr"] for c in first["cells"]] == ["0.05", "0.001"]  # best first
    assert first["cells"][0]["pm_nll"] < first["cells"][1]["pm_nll"]
    assert first["cells"][0]["failed_local_steps"] == 0
    kept = first["cells"][0] | {"pm_nll": 0.123}
    del kept["all_settings"]["server_lr"]  # (as if that setting were newer than the search)
    out.write_text(json.dumps(first | {"cells": [kept, first["cells"][1]]}))
    command(*arguments, "lr=0.05,0.02")
    command(*arguments, "lr=5e-2")  # the same
    cells = {c["settings"]["lr"]: c for c in json.loads(out.read_text())["cells"]}
    assert cells.keys() == {"0.05", "0.001", "0.02"}
    assert cells["0.05"]["pm_nll"] == 0.123  # not run again
    command(*arguments, "lr=0.05,0.02", "--by", "pm_accuracy,gm_accuracy")  # judged anew
    again = json.loads(out.read_text())
    values = [c["pm_accuracy"] + c["gm_accuracy"] for c in again["cells"]]
    assert again["by"] == ["pm_accuracy", "gm_accuracy"]
    assert values == sorted(values, reverse=True)
    for words, said in (
        ("one direction", ["lr=0.05", "--by", "pm_accuracy,gm_nll"]),
        ("fedavg has no pm_rmse", ["lr=0.05", "--by", "pm_rmse"]),
        ("settle must be at least 1", ["lr=0.05", "--settle", "0"]),
        ("only 2 evaluations; --settle asks for 5", ["lr=0.04", "--settle", "5", "--out", str(tmp_path / "new.json")]),
        ("lr is set twice", ["lr=0.05", "lr=0.02"]),
        ("lr must be above 0", ["lr=0.03,-1"]),
        ("its network is None, not 'mlp:5'", ["lr=0.05", "--network", "mlp:5"]),
        ("is a folder", ["lr=0.05", "--out", str(tmp_path)]),
    ):
        with pytest.raises(UserError, match=words):
            command(*arguments, *said)
    cells = {c["settings"]["lr"]: c for c in json.loads(out.read_text())["cells"]}
    assert cells.keys() == {"0.05", "0.001", "0.02"}  # nothing is run of a grid that cannot be
    smaller = [
        "search",
        "fedavg",
        "--rounds",
        "1",
        "--seeds",
        "1",
        "--network",
        "mlp:5",
        "--clients",
        "4",
        "--split",
        "iid",
    ]
    other = tmp_path / "other" / "search.json"
    command(*smaller, "--out", str(other), "lr=0.05")
    held = json.loads(other.read_text())
    assert (held["network"], held["clients"], held["split"]) == ("mlp:5", 4, "iid")
    with pytest.raises(UserError, match="fedavg has no pm_rmse"):
        command(*smaller, "--out", str(other), "lr=0.02", "--by", "pm_rmse")
    assert len(json.loads(other.read_text())["cells"]) == 2  # what was run is kept
    command(*smaller, "--out", str(other), "lr=0.02", "--against", "lr")
    command(*smaller, "--out", str(tmp_path / "steep.json"), "lr=1e30")
    assert json.loads((tmp_path / "steep.json").read_text())["cells"][0]["failed_local_steps"] == 4
    assert (tmp_path / "other" / "search.png").stat().st_size > 5000
    with pytest.raises(UserError, match="--against takes a setting of fedavg that is a number, not 'local_norm'"):
        command(*smaller, "--out", str(other), "lr=0.01", "--against", "local_norm")
    for text, words in (
        ("{", "damaged, or no json"),
        ("[]", "holds no table"),
        ('{"cells": [1]}', "holds no cells"),
        ("\xff", "damaged, or no json"),
    ):
        out.write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError, match=words):
            command(*arguments, "lr=0.05")
        assert out.read_bytes() == text.encode("latin-1")


def test_a_search_averages_over_the_last_evaluations_and_never_sees_test_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl.inference.engines import plate

    def only_validation(fitted: object, split: str, *rest: object) -> object:
        assert split == "validation"
        return evaluate(fitted, split, *rest)

    evaluate = plate.evaluate_personal
    monkeypatch.setattr(plate, "evaluate_personal", only_validation)
    values = []
    for settle in (1, 2):
        out = tmp_path / f"{settle}.json"
        command(
            "search", "fedavg", "--rounds", "2", "--seeds", "1", "--settle", str(settle), "--out", str(out), "lr=0.05"
        )
        values.append(json.loads(out.read_text())["cells"][0]["pm_nll"])
    federation = Federation.from_pool(registry.load("digits", tmp_path), 20, "label-skew:5", seed=0)
    settings = {**shipped_settings("fedavg", "digits")[0], "lr": 0.05}
    monkeypatch.undo()
    run = fit(FedAvg(architecture("mlp:64", federation), **settings), federation, rounds=2, progress=False)
    nll = [row["pm_nll"] for row in run.evaluations if row["split"] == "validation"]
    assert values == pytest.approx([nll[1], sum(nll) / 2])


@pytest.mark.parametrize(("said", "other"), [((), ""), (("lr=0.1",), ""), (("lr=0.05", "batch=7"), "lr=0.05, batch=7")])
def test_a_run_says_which_settings_are_not_the_chosen_ones(
    hierfl: Call, tmp_path: Path, said: tuple[str, ...], other: str
) -> None:
    settings, how = shipped_settings("fedavg", "digits")
    assert settings["lr"] == 0.1
    sets = [x for pair in said for x in ("--set", pair)]
    assert hierfl("run", "fedavg", *SHORT, *sets, "--out", "r")[0] == 0
    chosen = tomllib.loads((tmp_path / "r/config.toml").read_text())["run"]["settings_chosen"]
    assert chosen == how + (f"; other than that, as said: {other}" if other else "")


def test_runs_are_gathered_over_seeds(hierfl: Call, tmp_path: Path) -> None:
    from hierfl.experiments.compare.over_seeds import markdown, summarise_over_seeds

    for seed in (0, 1):
        assert hierfl("run", "fedavg", *SHORT, "--seed", seed, "--out", f"r{seed}")[0] == 0
    command("collect", "r0", "r1", "--out", "table.json")
    (record,) = json.loads((tmp_path / "table.json").read_text())
    values = [json.loads((tmp_path / f"r{s}/summary.json").read_text())["pm_accuracy"] for s in (0, 1)]
    assert record["pm_accuracy"] == pytest.approx(np.mean(values))
    assert record["pm_accuracy_se"] == pytest.approx(abs(values[0] - values[1]) / 2)
    assert "| fedavg |" in markdown([record])
    with pytest.raises(UserError, match="same seed twice"):
        summarise_over_seeds([tmp_path / "r0", tmp_path / "r0"])
    assert hierfl("run", "fedavg", *SHORT, "--set", "lr=0.2", "--seed", 2, "--out", "other")[0] == 0
    with pytest.raises(UserError, match="differ in more than their seed"):
        summarise_over_seeds([tmp_path / "r0", tmp_path / "other"])


def strange_sets(folder: Path) -> None:
    """Two sets of 4x4 bytes with three classes, bright in one place each; and dark noise of the same shape."""
    rng = np.random.default_rng(0)

    def images(n: int, strange: bool) -> tuple[np.ndarray, np.ndarray]:
        y = np.arange(n) % 3
        x = rng.integers(0, 60, (n, 4, 4)).astype(np.uint8)
        if not strange:
            x[np.arange(n), y, y] = 255
        return x, y

    for name, strange in (("ours", False), ("theirs", True)):
        x, y = images(300, strange)
        np.savez(folder / f"{name}.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])


def test_strange_inputs_are_noticed(hierfl: Call, tmp_path: Path) -> None:
    strange_sets(tmp_path)
    how = ("run", "fedpop", "--data", "ours", "--data-root", ".", "-J", "4", "--split", "iid", "--network", "mlp:8")
    settings = ("final_steps=100", "base_lr=0.02", "step_size=0.01")
    short = ("--rounds", "15", "--evaluate-every", "15", *(part for s in settings for part in ("--set", s)))
    code, out, _ = hierfl(*how, *short, "--ood", "theirs", "--out", "o")
    assert code == 0
    assert "inputs of theirs among its own, by predictive entropy: AUROC" in " ".join(out.split())
    summary = json.loads((tmp_path / "o/summary.json").read_text())
    assert summary["ood"] == "theirs"
    assert summary["ood_auroc"] > 0.9
    clients = pd.read_csv(tmp_path / "o/clients.csv")
    assert summary["ood_draws_auroc"] == pytest.approx(clients["ood_draws_auroc"].mean())
    assert (clients["ood_entropy"] > clients["entropy"]).all()
    assert {"entropy.png", "reliability-clients.png"} <= {p.name for p in (tmp_path / "o/figures").iterdir()}
    for arguments, words in (
        ((*how, "--ood", "none"), "unknown data set 'none'"),
        ((*how, "--ood", "ours"), "is what the models are made for"),
        (("run", "fedpop", "--ood", "ours", "--data-root", "."), "inputs of ours have shape (1, 4, 4), not (1, 8, 8)"),
        (("run", "mixed-effects", "--ood", "ours"), "--ood is a data set's"),
    ):
        code, _, err = hierfl(*arguments)
        assert code == 2
        assert words in err, err


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
