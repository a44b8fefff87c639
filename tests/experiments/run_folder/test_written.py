"""Files of a run: whole or not at all, on a full disk too, and for their owner."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.commands import Call, forked
from support.run_folders import SMALL, Finished, lines

from hierfl.arviz_data import group_names, import_arviz
from hierfl.arviz_io import read
from hierfl.experiments.run_folder import start
from hierfl.files import write_whole


def test_a_file_is_brought_to_the_disk_before_its_name_and_then_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spied(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def call(*arguments: object) -> object:
            what = arguments[0]
            is_folder = isinstance(what, int) and stat.S_ISDIR(os.fstat(what).st_mode)
            seen.append((name, "folder" if is_folder else "file"))
            return original(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, spied(name))
    write_whole(tmp_path / "a.txt", b"new", mode=0o600)
    assert seen == [("fsync", "file"), ("replace", "file"), ("fsync", "folder")]
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o600


def filling(size: int) -> None:
    """From when results are written, this process's files may not grow beyond a size."""
    write = start.write_results

    def small(*arguments: Any, **options: Any) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return write(*arguments, **options)

    start.write_results = small


def test_a_full_disk_is_one_line_and_the_run_goes_on(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    """Files that may not grow beyond some size fail as on a full disk, whoever writes them."""
    finished("pfedvem", "o")
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0  # what that imports, the children have
    for size in (2_000, 20_000):
        command = ("run", "pfedvem", *SMALL, "--out", "o", "--overwrite")
        code, output = forked(command, partial(filling, size)), (tmp_path / "out.txt").read_text()
        assert (code, len(lines(output))) == (2, 1), output
        assert output.startswith("error: File too large: o/")
        assert not (tmp_path / "o/summary.json").exists()
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_responses_are_for_their_owner(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    finished("pfedvem", "with")
    assert hierfl("run", "pfedvem", *SMALL, "--out", "without", "--no-observed-data")[0] == 0
    for name in ("with", "without"):
        assert stat.S_IMODE((tmp_path / name / "posterior.nc").stat().st_mode) == 0o600
    ours, theirs = read(tmp_path / "with/posterior.nc"), read(tmp_path / "without/posterior.nc")
    assert set(group_names(ours)) - set(group_names(theirs)) == {"observed_data"}
    assert "y" in theirs.log_likelihood
    import_arviz().summary(theirs, var_names=["w_j"], coords={"client": ["0"]})
    assert hierfl("report", "without", "--quiet", "--no-features")[0] == 0
    assert hierfl("compare", "with", "without")[2].startswith("error: with and without are the same run")


def test_in_memory_is_what_arviz_writes(tmp_path: Path, finished: Finished) -> None:
    ours = read(finished("pfedvem", tmp_path / "o") / "posterior.nc")
    ours.to_netcdf(str(tmp_path / "theirs.nc"), engine="h5netcdf")
    theirs = import_arviz().from_netcdf(str(tmp_path / "theirs.nc"))
    assert group_names(ours) == group_names(theirs)
    for group in group_names(ours):
        assert ours[group].identical(theirs[group])


def test_a_run_of_no_rounds_has_its_page(hierfl: Call, tmp_path: Path) -> None:
    """Its participation.csv has columns, and no rows to tell their type by."""
    assert hierfl("run", "fedavg", "--clients", "4", "--network", "linear", "--rounds", "0", "--out", "none")[0] == 0
    assert hierfl("report", "none", "--no-features")[0] == 0
    assert "0 rounds" in (tmp_path / "none/report.html").read_text(encoding="utf-8")
