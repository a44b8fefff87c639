"""`hierfl.compare`, `report`, `ablate` and `tune`: functions that leave and return what the commands do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.commands import Call

import hierfl as house
from hierfl import UserError


def test_compare_and_report_take_the_defaults_of_the_commands(
    hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def keep(*args: Any, **options: Any) -> list[Any]:
        calls.append((*args, sorted(options.items())))
        return []

    for module in ("functions", "compare.comparison"):
        monkeypatch.setattr(f"hierfl.experiments.{module}.compare_runs", keep)
    for module in ("comparison.write_comparison", "write.write_report"):
        monkeypatch.setattr(f"hierfl.experiments.report.{module}", keep)
    house.compare(["a", Path("b")], loo=False, out=tmp_path / "python")
    assert hierfl("compare", "a", "b", "--no-loo", "--out", tmp_path / "c", "--quiet")[0] == 0
    house.report("a", features=False, rows=False, data="moved.npz")
    assert hierfl("report", "a", "--no-features", "--no-rows", "--data", "moved.npz", "--quiet")[0] == 0
    in_python, _, by_command, written, page, page_by_command = calls
    assert in_python == by_command
    assert written[0] == []
    assert page == page_by_command
    with pytest.raises(UserError, match="takes no rounds; known: data, data_root"):
        house.report("a", rounds=3)
    with pytest.raises(UserError, match="runs is"):
        house.compare("a")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("")
    with pytest.raises(UserError, match="full exists"):
        house.compare(["a", "b"], out=tmp_path / "full")


def test_ablate_and_tune_take_the_defaults_of_the_commands(
    hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both call the same search with the same arguments, progress apart."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def keep(*args: Any, **options: Any) -> dict[str, float]:
        calls.append((args, {name: value for name, value in options.items() if name != "progress"}))
        return {"pm_nll": 1.0}

    monkeypatch.setattr("hierfl.experiments.search.tune.tune", keep)
    monkeypatch.setattr("hierfl.experiments.search.ablate.ablate", keep)
    monkeypatch.setattr("hierfl.experiments.cli.as_json.comparison", lambda compared, folder: compared)
    assert house.tune("ditto", grid={"lr": [0.1, 0.01]}, rounds=3, by=["pm_nll"]) == {"pm_nll": 1.0}
    assert hierfl("tune", "ditto", "lr=0.1,0.01", "--rounds", 3, "--by", "pm_nll", "--json")[0] == 0
    house.ablate("pfedvem", seeds=2, settings={"head_lr": "0.1"}, scales=[0.1, 1.0], rounds=2)
    options = ["--seeds", 2, "--set", "head_lr=0.1", "--scales", "0.1,1", "--rounds", 2, "--quiet"]
    assert hierfl("ablate", "pfedvem", *options)[0] == 0
    tuned, by_command, ablated, and_by_command = calls
    assert tuned == by_command
    assert ablated[1] == and_by_command[1]
    assert ablated[0] == and_by_command[0][: len(ablated[0])]


def test_options_that_do_not_exist_are_one_line(tmp_path: Path) -> None:
    for call in (house.tune, house.ablate):
        with pytest.raises(UserError, match="unknown run option 'roundss'"):
            call("fedper" if call is house.tune else "pfedvem", "digits", roundss=3, out=tmp_path / "x")
    with pytest.raises(UserError, match="unknown method"):
        house.tune("fedperr")
