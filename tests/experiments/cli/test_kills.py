"""Killed at any moment, no run is ever stuck: what is there goes on, or is begun again by the same command."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hierfl.experiments import cli

RUN = ("run", "pfedvem", "-J", "3", "--split", "iid", "--rounds", "2", "--network", "mlp:4", "--out", "o", "--quiet")
#: events of Python's audit hooks that change a folder
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")


def counted(step: Callable[[], None]) -> Callable[[str, tuple[object, ...]], None]:
    """An audit hook that calls a function before every change of a file or folder here or below."""
    here = os.getcwd()

    def inside(path: object) -> bool:
        text = os.fsdecode(path) if isinstance(path, str | bytes) else ""
        return bool(text) and os.path.abspath(text).startswith(here)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) and inside(path):
                step()
        elif event in CHANGES and (inside(arguments[0]) or arguments[-1] not in (-1, None)):
            step()

    return hook


def forked(command: tuple[str, ...], prepare: Callable[[], object] = lambda: None) -> int:
    """Runs a command line in a child that has everything imported; its exit status, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            quiet = os.open("out.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            sys.argv = ["hierfl", *command]
            prepare()
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(number: int) -> Callable[[], None]:
    """Prepares a process to kill itself before its nth change of a file or folder."""

    def prepare() -> None:
        left = number

        def step() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(counted(step))

    return prepare


def changes(command: tuple[str, ...]) -> int:
    """How many changes of files and folders a command makes."""
    counter = Path("count.txt")

    def prepare() -> None:
        handle = os.open(counter, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        sys.addaudithook(counted(lambda: os.write(handle, b".") and None))

    assert forked(command, prepare) == 0, Path("out.txt").read_text()
    number = counter.stat().st_size
    counter.unlink()
    return number


def result(folder: Path) -> dict[str, object]:
    """What a run has found."""
    summary = json.loads((folder / "summary.json").read_text())
    return {k: v for k, v in summary.items() if k != "seconds_per_round"}


def old_run(folder: Path) -> None:
    """A finished run that is to be overwritten."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree("old", folder)


def goes_on(overwrite: bool) -> None:
    """What a user does after a kill: the folder is resumed if it is a run's; else the command is said again."""
    folder, again = Path("o"), (*RUN, "--overwrite") if overwrite or Path("o").exists() else RUN
    if overwrite:  # the old run, or the new one, or the same command: nothing is lost for good
        shutil.copytree(folder, "kept", symlinks=True)
        assert forked(("run", "--resume", "kept", "--quiet")) == 0, Path("out.txt").read_text()
        shutil.rmtree("kept")
    command = ("run", "--resume", "o", "--quiet") if (folder / "config.toml").is_file() and not overwrite else again
    assert forked(command) == 0, (command, Path("out.txt").read_text())


def moments(number: int, some: int) -> list[int]:
    """Some of the moments 1..number, by luck."""
    luck = random.Random(os.environ.get("HIERFL_TEST_LUCK", "0"))
    return sorted(luck.sample(range(1, number + 1), min(some, number)))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, with everything imported that a run needs; a checkpoint after every round."""
    import hierfl.experiments.run_folder.start
    import hierfl.models.pfedvem  # noqa: F401
    from hierfl.arviz_io import import_arviz
    from hierfl.inference.run.keeper import CheckpointKeeper

    import_arviz()
    # (as often as it costs little depends on the clock: a kill must find what was counted)
    monkeypatch.setattr(CheckpointKeeper, "due", lambda self: True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("some", [4, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_kill_at_any_change_of_a_file_leaves_nothing_stuck(place: Path, some: int, overwrite: bool) -> None:
    assert forked((*RUN[:-3], "--out", "whole", "--quiet")) == 0
    whole = result(place / "whole")
    command = (*RUN, "--overwrite") if overwrite else RUN
    if overwrite:
        assert forked((*RUN[:-3], "--out", "old", "--quiet", "--seed", "5")) == 0
        old_run(place / "o")
    number = changes(command)
    assert number > 20
    assert result(place / "o") == whole
    for moment in moments(number, some):
        if overwrite:
            old_run(place / "o")
        else:
            shutil.rmtree(place / "o", ignore_errors=True)
        assert forked(command, killed_at(moment)) == -signal.SIGKILL
        goes_on(overwrite)
        assert result(place / "o") == whole, moment


TINY = ("--rounds", "2", "-J", "3", "--split", "iid", "--network", "mlp:4", "--quiet")
#: commands, and where what they find is; the same command goes on where it was stopped (a run's: --resume)
COMMANDS = {
    "run": (("run", "pfedvem", *TINY, "--out", "o"), "o/summary.json"),
    "ablate": (
        ("ablate", "pfedvem", *TINY, "--seeds", "1", "--scales", "0.3,1", "--out", "o"), "o/comparison/table.csv",
    ),
    "tune": (("tune", "fedavg", "lr=0.02,0.05,0.1", *TINY, "--out", "o/t.json"), "o/t.json"),
    "table": (
        ("table", "pfedvem-1", "--data", "fashion-mnist", "-J", "4", "--methods", "local,pfedvem", "--seeds", "1",
         "--data-root", ".", "--out", "o", "--quiet"), "o/table.md",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kills", [1, pytest.param(11, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_at_any_time_leaves_nothing_stuck(
    place: Path, name: str, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl.experiments.papers.table_definitions import TABLES

    y = np.arange(200) % 10
    x = np.random.default_rng(0).integers(0, 256, (200, 4, 4), dtype=np.uint8)
    np.savez("fashion-mnist.npz", x_train=x[50:], y_train=y[50:], x_test=x[:50], y_test=y[:50])
    short = {"validation_fraction": 0.0, "rounds": 2, "network": "mlp:4"}
    table = dataclasses.replace(TABLES["pfedvem-1"], given=short, exceptions={})
    monkeypatch.setitem(TABLES, "pfedvem-1", table)
    command, found = COMMANDS[name]

    def told() -> object:
        text = (place / found).read_text()
        record = json.loads(text) if found.endswith("json") else text
        return {k: v for k, v in record.items() if k != "seconds_per_round"} if isinstance(record, dict) else record

    luck, start = random.Random(f"{os.environ.get('HIERFL_TEST_LUCK', '0')} {name}"), time.monotonic()
    assert forked(command) == 0, Path("out.txt").read_text()
    whole, seconds = told(), time.monotonic() - start
    shutil.rmtree("o")
    done = 0
    while done < kills:
        again = ("run", "--resume", "o", "--quiet") if name == "run" and Path("o/config.toml").is_file() else command
        after = luck.uniform(0.02, 1.1) * seconds
        code = forked(again, partial(signal.setitimer, signal.ITIMER_REAL, after))
        assert code in (0, -signal.SIGALRM), Path("out.txt").read_text()
        done += code != 0
        if code == 0:  # (it was faster than the kill: once more, from the beginning)
            assert told() == whole
            shutil.rmtree("o")
    again = ("run", "--resume", "o", "--quiet") if name == "run" and Path("o/config.toml").is_file() else command
    assert forked(again) == 0, Path("out.txt").read_text()
    assert told() == whole
