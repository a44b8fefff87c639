"""`hierfl run` on data of one's own."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.commands import Call
from support.federations import stays
from support.run_folders import SHORT

from hierfl.experiments.run_folder.config_file import read_config

pytestmark = pytest.mark.figures("blank")


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


@pytest.mark.cpu(5, "three runs of the command")
def test_the_sd_of_a_regression_is_learned_unless_it_is_given(hierfl: Call, tmp_path: Path) -> None:
    """Costs in euro of ages in years; a folder from before there was a choice has its number."""
    df = stays(6)
    y, x, who, test = df.cost.to_numpy(), df[["age"]].to_numpy(), df.hospital.to_numpy().astype(str), df.index % 5 == 0
    np.savez(
        tmp_path / "stays.npz", x_train=x[~test], y_train=y[~test], client_train=who[~test], x_test=x[test],
        y_test=y[test], client_test=who[test],
    )  # fmt: skip
    how = "--data", "stays.npz", "--network", "linear", "--rounds", 20, "--evaluate-every", 10
    code, out, _ = hierfl("run", "fedavg", *how, "--out", "o")
    summary = json.loads((tmp_path / "o/summary.json").read_text())
    assert code == 0
    assert (summary["warnings"], summary["best"]["round"]) == ([], 20)
    assert 400 < summary["response_sd"] < 700
    assert 400 < summary["pm_rmse"] < 700
    assert "validation" in summary["best_note"]
    assert summary["best_note"] in " ".join(out.split())
    code, out, _ = hierfl("run", "fedavg", *how, "--response-sd", 1, "--out", "given")
    summary = json.loads((tmp_path / "given/summary.json").read_text())
    assert "90 % intervals" in summary["warnings"][0]
    assert "90 % intervals" in out
    assert "response_sd" not in summary
    config = (tmp_path / "given/config.toml").read_text()
    assert 'learn_sd = "no"' in config
    (tmp_path / "given/config.toml").write_text(config.replace('learn_sd = "no"\n', ""))
    assert read_config(tmp_path / "given").run.learn_sd == "no"
    code, _, err = hierfl("run", "fedavg", *how, "--response-sd", 1, "--learn-sd", "shared")
    assert code == 2
    assert "--response-sd 1 is a number, and --learn-sd shared learns one: say one of them" in err
    assert hierfl("run", "fedavg", "--rounds", 1, "--learn-sd", "clients")[0] == 2


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
    settings = ("final_steps=100", "final_keep=50", "base_lr=0.02", "step_size=0.01")
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
        (("run", "mixed-effects", "--ood", "ours"), "--ood is for data sets of arrays"),
    ):
        code, _, err = hierfl(*arguments)
        assert code == 2
        assert words in err, err
