"""`hierfl run --engine distributed`: as one would at a terminal."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = ["run", "pfedvem", "--clients", "6", "--quiet"]


def hierfl(*arguments: str, folder: Path) -> subprocess.Popen:
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
        held = (process / "environ").read_bytes().split(b"\0")
        return next((v[5:].decode() for v in held if v.startswith(b"RANK=")), "")
    except OSError:
        return ""


def test_ranks_write_one_folder(tmp_path: Path) -> None:
    plate = hierfl(*RUN, "--rounds", "2", "--out", "plate", folder=tmp_path)
    ranks = hierfl(*RUN, "--rounds", "2", "--out", "ranks", "--engine", "distributed", folder=tmp_path)
    for process in (plate, ranks):
        out, err = process.communicate()
        assert (process.returncode, out, err) == (0, "", "")
    written = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("plate", "ranks")]
    assert written[0] == written[1]
    for one, two in zip(numbers(tmp_path / "plate"), numbers(tmp_path / "ranks"), strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--ranks", "2"], "--ranks is for --engine distributed"),
        (["--engine", "cloud"], "unknown engine 'cloud'; known: plate, distributed"),
        (["--clients", "2", "--engine", "distributed", "--ranks", "3"], "2 clients cannot be shared by 3 ranks"),
    ],
)
def test_what_cannot_be_is_one_line(options: list[str], line: str, tmp_path: Path) -> None:
    process = hierfl(*RUN, *options, "--out", "run", folder=tmp_path)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (2, "", f"error: {line}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ranks are found in /proc")
def test_a_rank_that_is_killed_ends_the_run_which_goes_on(tmp_path: Path) -> None:
    """In one line, and with another number of ranks."""
    # (where steps are long, rounding grows)
    rounds = ["--rounds", "40", "--evaluate-every", "10", "--set", "base_lr=1e-5", "--set", "head_lr=1e-6"]
    run = hierfl(*RUN, *rounds, "--out", "run", "--engine", "distributed", "--ranks", "2", folder=tmp_path)
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
    again = hierfl("run", "--resume", "run", "--engine", "distributed", "--ranks", "3", "-q", folder=tmp_path)
    assert again.communicate() == ("", "")
    plate = hierfl(*RUN, *rounds, "--out", "plate", folder=tmp_path)
    assert plate.communicate() == ("", "")
    for one, two in zip(numbers(tmp_path / "plate"), numbers(tmp_path / "run"), strict=True):
        smooth = [name for name in one if name.endswith("nll")]  # (counts jump where rounding tips a prediction)
        assert [two[name] for name in smooth] == pytest.approx([one[name] for name in smooth], rel=1e-3)
