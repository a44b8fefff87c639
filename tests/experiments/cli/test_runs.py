"""`hierfl runs`, `hierfl run --config`, and `--json`: what there is, again, and for programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import Finished, lines

from hierfl.experiments.cli.as_json import plain


def test_runs_are_listed_with_their_state_the_newest_last(hierfl: Call, finished: Finished, tmp_path: Path) -> None:
    finished("fedavg", tmp_path / "runs" / "b" / "first")
    shutil.copytree(tmp_path / "runs" / "b" / "first", tmp_path / "runs" / "a")
    (tmp_path / "runs" / "a" / "summary.json").unlink()
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.toml").write_text("[run]\n")
    code, out, _ = hierfl("runs", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["name"] for row in rows] == ["a", "b/first", "damaged"] or rows[-1]["name"] == "damaged"
    by_name = {row["name"]: row for row in rows}
    first = by_name["b/first"]
    assert (first["method"], first["data"], first["done"], first["state"]) == ("fedavg", "digits", 2, "finished")
    summary = json.loads((tmp_path / "runs" / "b" / "first" / "summary.json").read_text())
    assert first["score"] == summary["pm_accuracy"]
    assert (by_name["a"]["done"], by_name["a"]["state"]) == (2, "not finished")
    assert by_name["damaged"]["state"].startswith("cannot be read: ")
    code, out, _ = hierfl("runs", "runs")
    assert "pm_accuracy" in out
    assert hierfl("runs", "nowhere")[0] == 2


def test_a_run_is_repeated_from_its_configuration_to_the_bit(hierfl: Call, finished: Finished, tmp_path: Path) -> None:
    first = finished("pfedvem", tmp_path / "first")
    shutil.copy(first / "config.toml", tmp_path / "kept.toml")
    code, out, err = hierfl("run", "--config", "kept.toml", "--out", "again", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert summary["folder"] == "again"
    for name in ("clients.csv", "history.csv", "participation.csv", "config.toml"):
        assert (tmp_path / "again" / name).read_text() == (first / name).read_text(), name
    state = next((first / "model").glob("*.safetensors")).read_bytes()
    assert next((tmp_path / "again" / "model").glob("*.safetensors")).read_bytes() == state


def test_options_that_contradict_a_configuration_are_refused(hierfl: Call, finished: Finished, tmp_path: Path) -> None:
    run = finished("fedavg", tmp_path / "run")
    text = (run / "config.toml").read_text()
    other = text.replace('federation = "', 'federation = "0')
    (tmp_path / "other.toml").write_text(other)
    for options, words in {
        ("--config", "run", "--rounds", 3): "--config repeats what the file says, without --rounds",
        ("pfedvem", "--config", "run"): "--config repeats what the file says, without --method",
        ("--config", "run", "--set", "ft_epochs=1"): "without --set",
        ("--config", "run", "--resume", "run"): "--resume goes on with what the run's folder says, without --config",
        ("--config", "other.toml"): "holds other data than the run to repeat was on",
        ("--config", "none.toml"): "no file none.toml",
    }.items():
        code, _, err = hierfl("run", *options)
        assert code == 2, options
        assert words in err, err
        assert len(lines(err)) == 1
    assert not (tmp_path / "runs").exists()


def test_lists_are_json_too(hierfl: Call, finished: Finished, tmp_path: Path) -> None:
    assert "pfedvem" in [row["method"] for row in json.loads(hierfl("methods", "--json")[1])]
    settings = json.loads(hierfl("methods", "fedavg-ft", "--json")[1])["settings"]
    assert {"setting", "default", "meaning"} == set(settings[0])
    assert "digits" in json.loads(hierfl("datasets", "--json")[1])["data sets"]
    finished("fedavg", tmp_path / "run")
    assert json.loads(hierfl("collect", "run", "--out", "c.json", "--json")[1])[0]["method"] == "fedavg"
    evaluations = json.loads(hierfl("cost", "run", "--out", "cost", "--json")[1])["evaluations"]
    assert {type(row["pm_accuracy"]) for row in evaluations} == {float}
    assert evaluations[-1]["pm_draws_accuracy"] is None


@pytest.mark.parametrize(
    ("value", "expected"), [(float("nan"), None), ((1, Path("a")), [1, "a"]), ({1: True}, {"1": True})]
)
def test_what_is_printed_is_json(value: object, expected: object) -> None:
    assert plain(value) == expected
