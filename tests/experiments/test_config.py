"""The configuration of a run: what is declared once holds on the command line, in config.toml and for the fit."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.commands import Call
from typer.main import get_command

from hierfl.experiments.cli import app
from hierfl.experiments.config import ALL, RunConfig, has_default, names_of, options
from hierfl.experiments.configure import configure
from hierfl.experiments.methods import shipped_settings
from hierfl.experiments.run_folder.config_file import read_config
from hierfl.inference.options import Options

SMALL = ("-J", 3, "--split", "iid", "--rounds", 1, "--network", "mlp:4", "--quiet")


@pytest.mark.parametrize("command", ALL)
def test_a_command_has_the_options_that_are_declared(command: str) -> None:
    known = get_command(app).commands[command].params
    assert {p.name for p in known} >= set(names_of(command))
    assert not {p.name for p in known} & (options().keys() - set(names_of(command)) - {"method"})
    assert all(p.help for p in known if p.name in options())


def test_defaults_are_those_of_the_fit() -> None:
    theirs = {f.name: f.default for f in dataclasses.fields(Options)}
    fit = [name for name, about in options().items() if about.fit]
    assert set(fit) == theirs.keys() - {"dtype", "splits"}
    for name in fit:
        default = theirs[name]
        own = {f.name: f.default for f in dataclasses.fields(RunConfig)}[name]
        assert has_default(name, default) or own is dataclasses.MISSING or own == default


def test_a_configuration_is_read_as_it_was_written(hierfl: Call, tmp_path: Path) -> None:
    assert hierfl("run", "fedavg", *SMALL, "--absent-clients", "catch-up", "--out", "o")[0] == 0
    config = read_config(tmp_path / "o")
    assert config.run.absent_clients == "catch-up"
    assert config.run.formula is None
    assert tomllib.loads((tmp_path / "o/config.toml").read_text()) == config.as_tables()


@pytest.mark.parametrize("command", [("run", "--resume", "o"), ("report", "o"), ("compare", "o", "o")])
def test_a_folder_of_an_earlier_version_is_told_in_one_line(
    command: tuple[str, ...], hierfl: Call, tmp_path: Path
) -> None:
    assert hierfl("run", "fedavg", *SMALL, "--out", "o")[0] == 0
    path = tmp_path / "o/config.toml"
    path.write_text(path.read_text().replace("response_sd", "noise").replace("validation_fraction", "validation"))
    code, _, err = hierfl(*command)
    assert (code, err.count("\n")) == (2, 1)
    assert "config.toml has entries that this version of hierfl does not have: run.validation, run.noise." in err


def test_an_edited_configuration_is_one_line(hierfl: Call, tmp_path: Path) -> None:
    """Or what it says, where an editor has put a byte-order mark before it."""
    assert hierfl("run", "fedavg", *SMALL, "--out", "o")[0] == 0
    (tmp_path / "t.csv").write_text("site,y\na,1\nb,2\n")
    before, edited = (tmp_path / "o/config.toml").read_text(), tmp_path / "c.toml"
    changes = {
        ("[settings]", "[other]\na = 1\n\n[settings]"): "has an entry that is none of a run's: other (a run's",
        ('data = "digits"', 'data = "t.csv"'): "this configuration is of arrays, and t.csv is a table: start a new",
        ("lr = 0.1", "lr = true"): "lr must be a number, not True",
        ('split = "iid"', 'split = "natura"'): "unknown split 'natura'",
        ("[settings]", "roundz = 3\n\n[settings]"): "has entries that this version of hierfl does not have: run",
    }
    for (old, new), line in changes.items():
        assert before.count(old) == 1
        edited.write_text(before.replace(old, new))
        code, _, err = hierfl("run", "--config", "c.toml", "--out", "again")
        assert (code, err.count("\n")) == (2, 1), err
        assert line in err
    edited.write_text(before, encoding="utf-8-sig")
    assert hierfl("run", "--config", "c.toml", "--out", "again")[0] == 0


def test_a_way_of_absent_clients_that_there_is_not(hierfl: Call) -> None:
    code, _, err = hierfl("run", "fedavg", *SMALL, "--absent-clients", "sleep")
    assert (code, "unknown value of --absent-clients 'sleep'; known: train, catch-up, freeze" in err) == (2, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        (
            {"network": "mlp:4", "rounds": 3},
            "; that search had network mlp:64 and rounds 30, not the run's mlp:4 and 3",
        ),
        ({"rounds": 3}, "; that search had rounds 30, not the run's 3"),
    ],
)
def test_a_record_of_a_search_says_where_the_run_differs(given: dict[str, Any], words: str) -> None:
    """Settings that are best for 30 rounds of one network need not be so for three of another."""
    chosen = shipped_settings("fedavg", "digits")[1]
    assert configure("fedavg", "digits", given, {}).run.settings_chosen == chosen + words
