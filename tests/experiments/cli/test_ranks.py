"""`hierfl run --engine distributed`: as one would at a terminal."""

from __future__ import annotations

import csv
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.commands import Call, ended, fork

RUN = ["run", "pfedvem", "--clients", "6", "--quiet"]


def started(*arguments: str, folder: Path) -> subprocess.Popen:
    """The command, in a folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "hierfl", *arguments], cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def numbers(folder: Path) -> list[dict[str, float]]:
    """metrics.csv without what is timed."""
    rows = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    return [{k: float(v) for k, v in row.items() if v and k not in ("split", "seconds")} for row in rows]


def rank_of(process: Path) -> str:
    """Of a process in /proc; empty where it is none, or not ours."""
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
        return next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), "")
    except OSError:
        return ""


@pytest.fixture
def signals() -> Iterator[None]:
    """What is done about signals is as it was."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_ranks_write_one_folder(hierfl: Call, tmp_path: Path) -> None:
    """Two processes that have all imports by a fork."""
    importlib.import_module("hierfl.inference.engines.distributed")
    few = ["--rounds", "2", "--network", "mlp:4", "--set", "head_epochs=2", "--set", "base_epochs=1", "--draws", "4"]
    assert hierfl(*RUN, *few, "--out", "plate") == (0, "", "")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = (*RUN, *few, "--out", "ranks", "--engine", "distributed")
    ranks = [fork(command, partial(os.environ.update, environment, RANK=str(k)), f"said.{k}") for k in range(2)]
    assert [ended(rank) for rank in ranks] == [0, 0], [(tmp_path / f"said.{k}").read_text() for k in range(2)]
    assert [(tmp_path / f"said.{k}").read_text() for k in range(2)] == ["", ""]
    written = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("plate", "ranks")]
    assert written[0] == written[1]
    for expected, actual in zip(numbers(tmp_path / "plate"), numbers(tmp_path / "ranks"), strict=True):
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.usefixtures("signals")
def test_ranks_are_started_and_how_they_end_is_told(
    hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same words as the command, each with a place of its own; these stand for hierfl, and do nothing."""
    python = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    for ends, code, message in (
        ("exit 0", 0, ""),
        ("test $RANK = 0 || kill -KILL $$; sleep 0.2", 1, "error: rank 1 was killed (SIGKILL)"),
        ("exit 2", 2, ""),  # the first one's words are on the screen
    ):
        python.write_text(f'#!/bin/sh\necho "$RANK of $WORLD_SIZE at $MASTER_PORT: $*" > place.$RANK\n{ends}\n')
        python.chmod(0o700)
        words = [*RUN, "--out", "run", "--engine", "distributed", "--ranks", "2"]
        status, out, err = hierfl(*words)
        assert (status, out, err[: len(message)], err.count("\n")) == (code, "", message, bool(message)), err
        places = [(tmp_path / f"place.{k}").read_text().split(" ", 5) for k in range(2)]
        assert [fields[:3] for fields in places] == [["0", "of", "2"], ["1", "of", "2"]]
        assert places[0][3:] == places[1][3:]
        assert places[0][5].split() == ["-P", "-m", "hierfl", *words]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--ranks", "2"], "--ranks is for --engine distributed"),
        (["--engine", "cloud"], "unknown engine 'cloud'; known: plate, distributed"),
    ],
)
def test_what_cannot_be_is_one_line(options: list[str], line: str, hierfl: Call, tmp_path: Path) -> None:
    assert hierfl(*RUN, *options, "--out", "run") == (2, "", f"error: {line}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_ranks_find_to_be_impossible_is_one_line(tmp_path: Path) -> None:
    """As at a terminal."""
    options = ["--clients", "2", "--engine", "distributed", "--ranks", "3"]
    process = started(*RUN, *options, "--out", "run", folder=tmp_path)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (2, "", "error: 2 clients cannot be shared by 3 ranks\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_ranks_at_a_terminal_write_one_folder(tmp_path: Path) -> None:
    plate = started(*RUN, "--rounds", "2", "--out", "plate", folder=tmp_path)
    ranks = started(*RUN, "--rounds", "2", "--out", "ranks", "--engine", "distributed", folder=tmp_path)
    for process in (plate, ranks):
        out, err = process.communicate()
        assert (process.returncode, out, err) == (0, "", "")
    written = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("plate", "ranks")]
    assert written[0] == written[1]
    for expected, actual in zip(numbers(tmp_path / "plate"), numbers(tmp_path / "ranks"), strict=True):
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ranks are found in /proc")
def test_a_rank_that_is_killed_ends_the_run_which_goes_on(tmp_path: Path) -> None:
    """In one line, and with another number of ranks."""
    # Where steps are long, rounding grows.
    rounds = ["--rounds", "40", "--evaluate-every", "10", "--set", "base_lr=1e-5", "--set", "head_lr=1e-6"]
    run = started(*RUN, *rounds, "--out", "run", "--engine", "distributed", "--ranks", "2", folder=tmp_path)
    until = time.monotonic() + 120
    while time.monotonic() < until and not (tmp_path / "run" / "metrics.csv").is_file():
        time.sleep(0.05)
    children = [int(p) for p in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
    second = next(pid for pid in children if rank_of(Path(f"/proc/{pid}")) == "1")
    os.kill(second, signal.SIGKILL)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "rank 1 was killed (SIGKILL); go on with: hierfl run --resume DIR" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "summary.json").exists()
    again = started("run", "--resume", "run", "--engine", "distributed", "--ranks", "3", "-q", folder=tmp_path)
    assert again.communicate() == ("", "")
    plate = started(*RUN, *rounds, "--out", "plate", folder=tmp_path)
    assert plate.communicate() == ("", "")
    for expected, actual in zip(numbers(tmp_path / "plate"), numbers(tmp_path / "run"), strict=True):
        smooth = [name for name in expected if name.endswith("nll")]  # counts jump where rounding tips a prediction
        assert [actual[name] for name in smooth] == pytest.approx([expected[name] for name in smooth], rel=1e-3)
