"""Settings searched with a budget: where a search begins, how it moves, that it goes on, and what it says."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from support.commands import Call

from hierfl import UserError
from hierfl.experiments.methods import load, shipped_settings
from hierfl.experiments.search.cells import evaluate_cell
from hierfl.experiments.search.climb import climb, in_order, start_places
from hierfl.experiments.search.tune import grids, published_grid, tune
from hierfl.inference.method.settings import make_settings
from hierfl.models import METHODS

GRID = {"lr": ["0.1", "0.01", "0.001"], "mu": ["1", "2", "4", "8"]}


def test_a_search_moves_one_setting_after_the_other_while_that_is_better() -> None:
    seen: list[tuple[str, str]] = []

    def value(cell: dict[str, str]) -> float:
        seen.append((cell["lr"], cell["mu"]))
        return abs(float(cell["lr"]) - 0.01) + abs(float(cell["mu"]) - 8)

    assert climb(GRID, {"lr": 0, "mu": 0}, 100, value) == 8
    assert seen == [
        ("0.1", "1"), ("0.01", "1"), ("0.001", "1"),  # no better: back, and the next setting
        ("0.01", "2"), ("0.01", "4"), ("0.01", "8"),
        ("0.001", "8"), ("0.1", "8"),
    ]  # fmt: skip
    assert len(seen) == len(set(seen))  # no cell twice


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_a_budget_is_kept_and_a_larger_one_begins_alike(budget: int) -> None:
    runs = []
    for size in (budget, budget + 2):
        seen: list[dict[str, str]] = []
        climb(GRID, {"lr": 1, "mu": 2}, size, lambda cell, seen=seen: seen.append(cell) or len(seen) % 3)
        assert len(seen) <= size
        runs.append(seen)
    assert runs[0] == runs[1][: len(runs[0])]
    assert len(runs[0]) == budget


def test_a_search_leaves_where_nothing_is_finite() -> None:
    seen: list[dict[str, str]] = []
    climb(GRID, {"lr": 0, "mu": 0}, 100, lambda c: seen.append(c) or (0.0 if c["lr"] == "0.001" else float("inf")))
    assert {"lr": "0.001", "mu": "1"} in seen
    assert climb(GRID, {"lr": 1, "mu": 0}, 100, lambda cell: float("inf")) <= 12


def test_a_search_begins_at_the_value_nearest_to_the_default() -> None:
    assert start_places("fedprox", {"lr": ["1e-4", "3e-3", "0.5"], "mu": ["0.1", "1"]}) == {"lr": 1, "mu": 0}
    assert start_places("fedavg-ft", {"scope": ["all", "head"]}) == {"scope": 1}
    with pytest.raises(UserError, match="unknown setting of fedprox 'rho'"):
        start_places("fedprox", {"rho": ["1"]})


def test_neighbours_are_the_next_numbers_in_whatever_order_they_are_given() -> None:
    falling = {"lr": ["0.1", "1e-2", "0.001"], "scope": ["head", "all"], "rank": ["8"]}
    assert in_order({**falling, "mu": ["0.003", "0.001", "1e-2"]}) == {**falling, "mu": ["0.001", "0.003", "1e-2"]}


@pytest.mark.parametrize("method", grids())
def test_published_grids_can_be_run(method: str) -> None:
    assert method in METHODS
    grid, source = published_grid(method)
    assert len(source) > 10
    cls = load(method).cls
    for name, values in grid.items():
        for value in values:
            make_settings(cls, {name: value})
    start = start_places(method, grid)
    assert all(0 <= index < len(grid[name]) for name, index in start.items())


def test_tune_searches_goes_on_and_says_what_to_ship(hierfl: Call, tmp_path: Path) -> None:
    common = ("--rounds", 1, "--clients", 4, "--network", "mlp:5", "--by", "pm_accuracy,gm_accuracy", "--out", "t.json")
    code, out, err = hierfl("tune", "fedprox", "lr=0.1,0.01", "mu=0.1,1", "--budget", 2, *common)
    assert code == 0
    assert "fedprox on digits: at most 2 of 4 settings (as given)" in err
    assert "1 of 2" in err
    cells = json.loads((tmp_path / "t.json").read_text())["cells"]
    assert len(cells) == 2
    table = tomllib.loads(out[: out.index("all cells are in")])["digits"]
    assert table["chosen"].startswith("best of 2 settings of 1 round on validation data (pm_accuracy ")
    assert {k: table[k] for k in ("lr", "mu")} == {k: cells[0]["all_settings"][k] for k in ("lr", "mu")}
    cells[0]["pm_nll"] = 0.123
    record = json.loads((tmp_path / "t.json").read_text()) | {"cells": cells}
    (tmp_path / "t.json").write_text(json.dumps(record))
    assert hierfl("tune", "fedprox", "lr=0.1,0.01", "mu=0.1,1", "--budget", 3, *common, "-q") == (0, "", "")
    more = json.loads((tmp_path / "t.json").read_text())["cells"]
    assert len(more) == 3
    assert any(cell["pm_nll"] == 0.123 for cell in more)  # not run again
    # the best of three in a row has no better neighbour: the fourth is not run, and that is said
    common = (*common[:-1], "line.json")
    _, _, err = hierfl("tune", "fedprox", "mu=1,0.01,0.1,10", "epochs=0", "--budget", 9, *common)
    assert "no neighbour of the best of 3 settings is better; hierfl search runs all 4" in err
    # a method without a global model is judged by what it has
    code, out, _ = hierfl("tune", "fedper", "lr=0.1,0.01", *common[:-1], "own.json", "--budget", 1)
    assert code == 0
    assert "gm_accuracy" not in out


def test_who_has_no_such_metric_cannot_be_judged_by_it(hierfl: Call) -> None:
    options = ("fedper", "lr=0.1,0.01", "--rounds", 1, "--budget", 1, "--seeds", 1)
    code, out, err = hierfl("tune", *options, "--by", "gm_accuracy", "-q")
    assert (code, out) == (2, "")
    assert "fedper has no gm_accuracy to be judged by" in err


def test_wrong_searches_are_one_line(hierfl: Call) -> None:
    for arguments, words in (
        (["fedprox", "--budget", 0], "a budget is a number of cells, not 0"),
        (["pfedv", "--budget", 2], "no grid is published for pfedv; say one, as in lr=0.1,0.01"),
        (["fedprox", "rho=1,2"], "unknown setting of fedprox 'rho'"),
        (["fedprox", "lr=0,1", "--rounds", 1], "lr must be above 0"),
        (["fedprox", "--by", "speed"], "--by takes metrics"),
        (["nothing"], "unknown method 'nothing'"),
    ):
        code, out, err = hierfl("tune", *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert len(err.strip().splitlines()) <= 2


def test_fixed_values_stand_beside_the_published_grid(tmp_path: Path) -> None:
    given = {"rounds": 1, "clients": 4, "network": "mlp:5"}
    best = tune("fedprox", "digits", given, {"server_lr": ["0.5"]}, 1, tmp_path / "t.json", progress=False)
    assert best["all_settings"]["server_lr"] == 0.5
    assert set(best["settings"]) == {"lr", "mu", "epochs", "batch", "server_lr"}


QUICK = {"rounds": 1, "clients": 4, "network": "mlp:5"}


def test_a_search_speaks_of_its_own_grid_only(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    tune("fedprox", "digits", QUICK, {"lr": ["0.1", "0.3"]}, 2, out, progress=False)
    slow = tune("fedprox", "digits", QUICK, {"lr": ["1e-6", "1e-7"]}, 2, out, progress=False)
    cells = json.loads(out.read_text())["cells"]
    assert len(cells) == 4
    assert cells[0]["all_settings"]["lr"] > 1e-6 >= slow["all_settings"]["lr"]


def test_a_file_from_before_a_setting_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    first = tune("fedprox", "digits", QUICK, {"lr": ["0.1", "0.3"]}, 1, out, progress=False)
    record = json.loads(out.read_text())
    record["cells"][0]["all_settings"].pop("server_lr")
    record["cells"][0]["pm_nll"] = first["pm_nll"] = 0.0123
    out.write_text(json.dumps(record))
    assert tune("fedprox", "digits", QUICK, {"lr": ["0.1", "0.3"]}, 1, out, progress=False)["pm_nll"] == 0.0123


def test_a_whole_grid_is_checked_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lr must be above 0"):
        tune("fedprox", "digits", QUICK, {"lr": ["0.1", "0.3", "-1"]}, 1, tmp_path / "t.json", progress=False)
    assert not (tmp_path / "t.json").exists()


def test_what_is_to_ship_holds_what_was_inherited(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    tune("fedrep", "digits", QUICK, {"lr": ["0.1", "0.3"]}, 1, tmp_path / "t.json")
    out = capsys.readouterr().out
    table = tomllib.loads(out[: out.index("all cells are in")])["digits"]
    shipped, _ = shipped_settings("fedrep", "digits")
    assert table["batch"] == shipped["batch"] != make_settings(load("fedrep").cls, {}).batch
    assert table["chosen"].startswith("best of 1 setting of 1 round on")


def test_a_stopped_search_says_how_it_goes_on(
    capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hierfl.experiments.search.cells.evaluate_cell", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune("fedprox", "digits", QUICK, {"lr": ["0.1", "0.3"]}, 1, tmp_path / "t.json")
    assert "stopped; 0 of 1 settings" in capsys.readouterr().err


def test_a_search_without_validation_data_says_what_gives_some() -> None:
    given = {"clients": 2, "split": "iid", "rounds": 1, "validation_fraction": 0.0}
    with pytest.raises(UserError, match="no validation data to choose by: --validation-of clients takes rows of every"):
        evaluate_cell("fedavg", "digits", given, {}, 1)
