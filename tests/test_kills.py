"""Killed at any moment, no run is ever stuck: what is there goes on, or is begun again by the same command."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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


def forked(command: tuple[str, ...], prepare: Callable[[], None] = lambda: None) -> int:
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
    """An empty folder to work in, with everything imported that a run needs; one picture stands for all."""
    import hierfl.experiments.runner
    import hierfl.models.pfedvem  # noqa: F401
    from hierfl import plots
    from hierfl.posterior import import_arviz

    import_arviz()
    every = plots.save_all
    monkeypatch.setattr(
        plots, "save_all", lambda folder, drawn, *rest: every(folder, dict([*drawn.items()][:1]), *rest)
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("some", [6, pytest.param(10_000, marks=pytest.mark.slow)])
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
