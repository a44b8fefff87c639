"""Paired differences and their intervals; names of files; sizes, searches and synthetic data as tables."""

from __future__ import annotations

import dataclasses
import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel
from support.commands import Call, command
from support.drawing import one_figure

from hierfl import UserError
from hierfl.data.synthetic import synthetic as made_data
from hierfl.experiments.papers import round_cost, runners, synthetic
from hierfl.experiments.papers.client_sizes import EDGES
from hierfl.experiments.papers.definition import EntryKey
from hierfl.experiments.papers.differences import differences, in_words, paired
from hierfl.experiments.papers.labels import labels
from hierfl.experiments.papers.make_table import definition, make_table


def test_a_difference_is_a_paired_t_test() -> None:
    first, second = np.random.default_rng(0).normal(size=(2, 7))
    gap = paired((first - second).tolist())
    low, high = ttest_rel(first, second).confidence_interval()
    assert [gap["mean"], gap["low"], gap["high"]] == pytest.approx([np.mean(first - second), low, high])
    assert in_words({"mean": 0.5, "se": 0.1, "low": 0.25, "high": 0.75}, 2) == "+0.50 [+0.25, +0.75]"
    assert in_words(paired([0.25, 0.75, 0.5, 0.5]), 2) == "+0.50 ± 0.10"
    assert in_words(paired([0.5]), 2) == "+0.50"
    assert paired([1.0])["se"] is None


def test_draws_are_compared_with_the_only_prediction_of_a_method_without_draws(tmp_path: Path) -> None:
    table, runs = definition("pfedvem-1"), {}
    scores = {
        "pfedhb": {"pm_nll": 0.5, "pm_draws_nll": 0.25}, "fedper": {"pm_nll": 0.75, "pm_draws_nll": None},
        "pfedvem": {"pm_nll": 1.0, "pm_draws_nll": 1.5}, "fedavg": {"pm_nll": 2.0},
    }  # fmt: skip
    for method, own in scores.items():
        folder = tmp_path / method
        folder.mkdir()
        numbers = dict.fromkeys(("clients", "rounds", "seed"), 1)
        rest = {**dict.fromkeys(("data", "split", "seconds_per_round", "best")), "versions": {}}
        (folder / "summary.json").write_text(json.dumps({"method": method, "device": "cpu", **numbers, **rest, **own}))
        runs[EntryKey("fashion-mnist", 100, "", method)] = {0: folder}
    table = dataclasses.replace(table, claims=(*table.claims, ("fedper", "fedavg")))
    gaps = {(gap["better"], gap["worse"]): gap["by"] for gap in differences(table, runs)}
    means = {pair: {name: number["mean"] for name, number in by.items()} for pair, by in gaps.items()}
    assert means["pfedhb", "fedper"] == {"NLL": -0.25, "NLL of draws": -0.5}
    assert means["pfedhb", "pfedvem"] == {"NLL": -0.5, "NLL of draws": -1.25}
    assert means["fedper", "fedavg"] == {"NLL": -1.25}


def test_files_are_called_by_as_little_of_their_path_as_tells_them_apart() -> None:
    assert labels(["fedavg", "/a/mine.py", "/a/b/sites.npz", "/a/c/sites.npz"]) == {
        "/a/mine.py": "mine.py", "/a/b/sites.npz": "b/sites.npz", "/a/c/sites.npz": "c/sites.npz",
    }  # fmt: skip


OWN = """
title = "Mine"
data = ["digits"]
clients = [4]
methods = ["fedavg", "./mine.py"]
first_seed = 3
claims = [["./mine.py", "*"]]
run = { rounds = 1, network = "mlp:4", split = "iid", validation_fraction = 0.0 }
"""


def test_an_own_method_by_its_name_and_seeds_from_another_one(
    tmp_path: Path, hierfl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("from hierfl.models import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    Path("t.toml").write_text(OWN)
    with one_figure():
        code, out, _ = hierfl("table", "t.toml", "--out", "t", "--json")
    assert code == 0
    rows = {row["method"]: row for row in json.loads(out) if row["model"] == "PM"}
    assert rows.keys() == {"fedavg", "mine.py"}
    assert rows["fedavg"]["ours"] == rows["mine.py"]["ours"]
    text = Path("t/table.md").read_text()
    assert str(tmp_path) not in text + Path("t/table.csv").read_text() + Path("t/runs.csv").read_text()
    assert "| mine.py less fedavg | digits, J = 4 | 1 | +0.00 |" in text
    assert text.count("not tested") == 1  # below the table, and in no cell
    assert [line.split(",")[4] for line in Path("t/runs.csv").read_text().splitlines()[1:]] == ["3", "3"]
    for old, new, words in (
        ("first_seed = 3", "first_seed = -1", "first_seed is a whole number from 0"),
        ('"./mine.py", "*"', '"fedrep", "*"', "claims: unknown method 'fedrep'"),
    ):
        Path("t.toml").write_text(OWN.replace(old, new))
        with pytest.raises(UserError, match=words):
            definition("t.toml")


SEARCH = """
title = "Chosen alike"
data = ["digits"]
clients = [4]
methods = ["fedavg", "fedper"]
runner = "search"
run = { rounds = 1, network = "mlp:4", split = "iid", validation_fraction = 0.2, validation_of = "clients" }
arguments = { budget = 2 }
grid.fedavg = { lr = [0.01, 0.1], batch = [50] }
grid.fedper = { lr = [0.01, 0.1] }
"""


def test_one_search_for_several_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SEARCH)
    make_table("s.toml", Path("s"), methods=["fedper"], progress=False)
    # What an earlier call has searched stays in the table and in chosen.toml.
    rows = make_table("s.toml", Path("s"), methods=["fedavg"], progress=False)
    assert [row["method"] for row in rows] == ["fedavg", "fedper"]
    for row in rows:
        cells = json.loads(Path(f"s/tune-{row['method']}-digits-4.json").read_text())["cells"]
        assert len(cells) == 2
        assert row["ours"] == min(cell["pm_nll"] for cell in cells)
    chosen = tomllib.loads(Path("s/chosen.toml").read_text())["where"]
    assert [entry["method"] for entry in chosen] == ["fedavg", "fedper"]
    assert chosen[0]["settings"] == {"lr": 0.1, "batch": 50}
    Path("own.toml").write_text(OWN.replace(', "./mine.py"', "").replace('claims = [["./mine.py", "*"]]', ""))
    with Path("own.toml").open("a") as file:
        file.write(Path("s/chosen.toml").read_text().partition('\n[[where]]\ndata = "digits"\nmethod = "fedper"')[0])
    assert definition("own.toml").rules[0].settings == {"lr": 0.1, "batch": 50}
    Path("s.toml").write_text(SEARCH.replace("grid.fedper = { lr = [0.01, 0.1] }", ""))
    with pytest.raises(UserError, match="s has no grid of fedper"):
        make_table("s.toml", Path("s"), progress=False)


def test_synthetic_data_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[tuple[str, int]] = []

    def fake_fit(name: str, settings: Any, federation: Any, noise: float, seed: int, rounds: int) -> str:
        fits.append((name, seed))
        return name

    monkeypatch.setattr(synthetic, "fit_contestant", fake_fit)
    monkeypatch.setattr(synthetic, "choose", lambda name, reading, rounds: ({"lr": 0.1}, []))
    monkeypatch.setattr(synthetic, "measured", lambda run, made: dict.fromkeys(
        ("principal_angle", "z_error", "test_rmse"), float(len(run))))  # fmt: skip
    monkeypatch.setattr(synthetic, "draw", lambda frame, path: None)
    monkeypatch.setattr(synthetic.truth, "synthetic", lambda seed, reading: (None, made_data(0)[1]))
    options = {"settings": {"exact": "0"}, "progress": False}
    level = logging.getLogger("hierfl").level
    rows = make_table("fedpop-figure-2", tmp_path, seeds=1, **options)  # type: ignore[arg-type]
    assert logging.getLogger("hierfl").level == level
    assert len(rows) == 15
    assert fits == [(name, 0) for name in synthetic.CONTESTANTS]
    make_table("fedpop-figure-2", tmp_path, seeds=2, **options)  # type: ignore[arg-type]
    assert fits[5:] == [(name, 1) for name in synthetic.CONTESTANTS]
    with pytest.raises(UserError, match="holds another experiment: its rounds is 200, not 3"):
        make_table("fedpop-figure-2", tmp_path, seeds=2, extra={"rounds": 3}, **options)  # type: ignore[arg-type]


def test_a_network_is_every_methods_in_the_table_of_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def timed(cells: Any, extra: Any, turns: int) -> list[Any]:
        seen.extend(cell.given["network"] for cell in cells.values())
        return []

    monkeypatch.setattr(runners, "time_rounds", timed)
    monkeypatch.setattr(runners, "cost_table", lambda rows: "")
    assert round_cost.with_width("cnn:2:8", 4) == "cnn:2:4"
    extra = {"network": "cnn:2:8"}
    make_table("pfedvmp-cost", tmp_path, methods=["fedper", "pfedvmp"], settings={"widths": "4"}, extra=extra, progress=False)  # fmt: skip  # noqa: E501
    assert seen == ["cnn:2:4", "cnn:2:4"]


def test_how_large_clients_are(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    y = np.arange(3000) % 10
    np.savez(
        root / "fashion-mnist.npz", x_train=np.zeros((3000, 1)), y_train=y, x_test=np.zeros((50, 1)), y_test=y[:50]
    )
    rows = make_table("pfedvem-figure-3", tmp_path / "t", settings={"splits": "2"}, extra={"data_root": str(root)}, progress=False)  # fmt: skip  # noqa: E501
    assert {row["clients"] for row in rows} == {50, 100, 200}
    cells = json.loads((tmp_path / "t/sizes.json").read_text())["cells"]
    assert sum(cells[0]["counts"]) == 2 * 50
    assert len(cells[0]["counts"]) == len(EDGES) - 1
    assert cells[0]["smallest"] < cells[0]["median"] < 3000 / 50 * 1.5 < cells[0]["largest"]
    with pytest.raises(UserError, match="its splits is 2, not 3"):
        command(
            "table", "pfedvem-figure-3", "--set", "splits=3", "--data-root", str(root), "--out", str(tmp_path / "t")
        )
