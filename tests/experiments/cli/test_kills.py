"""Killed at any moment, no run is ever stuck: what is there goes on, or is begun again by the same command."""

from __future__ import annotations

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
from support.commands import command as in_this_process
from support.commands import forked

TINY = ("--rounds", "2", "-J", "3", "--split", "iid", "--network", "mlp:4", "--quiet")
#: of a run whose rounds take hardly any time
FEW = ("--set", "head_epochs=1", "--set", "base_epochs=1", "--set", "base_batch=100")
RUN = ("run", "pfedvem", *TINY, *FEW, "--out", "o")
#: events of Python's audit hooks that change a folder
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")


def counted(step: Callable[[], None]) -> Callable[[str, tuple[object, ...]], None]:
    """An audit hook that calls a function before every change of a file or folder here or below."""
    folder = os.getcwd()

    def inside(path: object) -> bool:
        text = os.fsdecode(path) if isinstance(path, str | bytes) else ""
        return bool(text) and os.path.abspath(text).startswith(folder)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) and inside(path):
                step()
        elif event in CHANGES and (inside(arguments[0]) or arguments[-1] not in (-1, None)):
            step()

    return hook


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


def moments(number: int, part: tuple[int, int]) -> list[int]:
    """One of the moments 1..number, by luck, where no part of them is asked for."""
    first, parts = part
    luck = random.Random(os.environ.get("HIERFL_TEST_LUCK", "0"))
    return [*range(1 + first, number + 1, parts)] if parts else [luck.randint(1, number)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, with everything imported that a run needs; a checkpoint after every round."""
    from hierfl.inference.run.keeper import CheckpointKeeper

    in_this_process("run", "pfedvem", *TINY, "--out", tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    # As often as it costs little depends on the clock: a kill must find what was counted.
    monkeypatch.setattr(CheckpointKeeper, "due", lambda self: True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


#: one moment of overwriting a run is in the quick set; all of them, in parts, in the slow one
PARTS = [
    pytest.param(
        True, (0, 0), id="overwrite, one", marks=pytest.mark.cpu(5, "a run is killed, and what is left goes on")
    ),
    *(
        pytest.param(
            overwrite, (k, 4), id=f"{'overwrite' if overwrite else 'new'}, {k + 1} of 4", marks=pytest.mark.slow
        )
        for overwrite in (False, True)
        for k in range(4)
    ),
]


@pytest.mark.parametrize(("overwrite", "part"), PARTS)
def test_a_kill_at_any_change_of_a_file_leaves_nothing_stuck(
    folder: Path, overwrite: bool, part: tuple[int, int]
) -> None:
    assert forked((*RUN[:-1], "whole")) == 0
    whole = result(folder / "whole")
    command = (*RUN, "--overwrite") if overwrite else RUN
    if overwrite:
        assert forked((*RUN[:-1], "old", "--seed", "5")) == 0
        old_run(folder / "o")
    number = changes(command)
    assert number > 20
    assert result(folder / "o") == whole
    for moment in moments(number, part):
        if overwrite:
            old_run(folder / "o")
        else:
            shutil.rmtree(folder / "o", ignore_errors=True)
        assert forked(command, killed_at(moment)) == -signal.SIGKILL
        goes_on(overwrite)
        assert result(folder / "o") == whole, moment


#: commands, and where what they find is; the same command goes on where it was stopped, that of a run with --resume
COMMANDS = {
    "run": (RUN, "o/summary.json"),
    "ablate": (
        ("ablate", "pfedvem", *TINY, "--seeds", "1", "--scales", "0.3,1", "--out", "o"), "o/comparison/table.csv",
    ),
    "tune": (("tune", "fedavg", "lr=0.02,0.05,0.1", *TINY, "--out", "o/t.json"), "o/t.json"),
    "table": (
        ("table", "mine.toml", "--methods", "local,pfedvem", "--seeds", "1", "--data-root", ".", "--out", "o",
         "--quiet"), "o/table.md",
    ),
}  # fmt: skip


TABLE = """
title = "two methods"
data = ["fashion-mnist"]
clients = [4]
methods = ["local", "pfedvem"]
run = { validation_fraction = 0.0, rounds = 2, network = "mlp:4" }
"""


@pytest.mark.parametrize(
    ("name", "kills"), [("tune", 1), *(pytest.param(name, 11, marks=pytest.mark.slow) for name in COMMANDS)]
)
def test_a_kill_at_any_time_leaves_nothing_stuck(folder: Path, name: str, kills: int) -> None:
    y = np.arange(200) % 10
    x = np.random.default_rng(0).integers(0, 256, (200, 4, 4), dtype=np.uint8)
    np.savez("fashion-mnist.npz", x_train=x[50:], y_train=y[50:], x_test=x[:50], y_test=y[:50])
    Path("mine.toml").write_text(TABLE)
    command, result_file = COMMANDS[name]

    def told() -> object:
        text = (folder / result_file).read_text()
        record = json.loads(text) if result_file.endswith("json") else text
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
        if code == 0:  # it was faster than the kill: once more, from the beginning
            assert told() == whole
            shutil.rmtree("o")
    again = ("run", "--resume", "o", "--quiet") if name == "run" and Path("o/config.toml").is_file() else command
    assert forked(again) == 0, Path("out.txt").read_text()
    assert told() == whole
