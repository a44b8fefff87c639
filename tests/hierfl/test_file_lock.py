"""A lock file: one process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hierfl.file_lock import Busy, locked

RIVAL = """
import os, sys, time
from pathlib import Path
from hierfl.file_lock import Busy, locked
held = twice = 0
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    try:
        with locked(Path("o.lock"), "busy"):
            held += 1
            try:
                os.close(os.open("inside", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                twice += 1
                continue
            os.unlink("inside")
    except Busy:
        pass
print(held, twice)
"""


def test_a_lock_is_never_held_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RIVAL, "0.7"]
    rivals = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [tuple(map(int, rival.communicate()[0].split())) for rival in rivals]
    assert sum(count for count, _ in counts) > 100
    assert sum(twice for _, twice in counts) == 0


def test_a_lock_excludes_and_stays(tmp_path: Path) -> None:
    with locked(tmp_path / "l", "busy"), pytest.raises(Busy, match="busy"), locked(tmp_path / "l", "busy"):
        pass
    assert (tmp_path / "l").exists()
    with locked(tmp_path / "l", "busy"):
        pass
