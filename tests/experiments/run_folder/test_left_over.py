"""Run folders that a failed start has left, that cannot be written, or whose names lead elsewhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import SMALL, Finished, arrays, lines

from hierfl.experiments.grid import run_cell
from hierfl.experiments.papers.cells import table_cell
from hierfl.experiments.papers.definition import EntryKey
from hierfl.experiments.papers.read_definition import shipped
from hierfl.files import check_writable


@pytest.mark.parametrize("left", [(), (".lock",), (".config.toml.part",), (".lock", ".config.toml.part")])
def test_what_a_failed_start_leaves_is_overwritten(left: tuple[str, ...], hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    for name in left:
        (tmp_path / "o" / name).touch()
    code, _, err = hierfl("run", "--resume", "o")
    assert (code, "is not the folder of a run" in err) == (2, True)
    assert ("begin again with --out o --overwrite" in err) == bool(left)
    assert hierfl("run", "fedavg", *SMALL, "--out", "o")[0] == 2
    assert hierfl("run", "fedavg", *SMALL, "--out", "o", "--overwrite")[0] == 0
    assert not (tmp_path / "o/.config.toml.part").exists()


def test_somebodys_own_files_are_not_overwritten(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o/metrics.csv").write_text("mine\n")
    assert hierfl("run", "fedavg", *SMALL, "--out", "o", "--overwrite")[0] == 2
    assert (tmp_path / "o/metrics.csv").read_text() == "mine\n"


def test_a_tables_cell_begins_again_where_a_start_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arrays(tmp_path / "fashion-mnist.npz")
    cell = table_cell(shipped("pfedvem-1"), EntryKey("fashion-mnist", 3, "", "fedavg"), 0)
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell/.lock").touch()
    (tmp_path / "cell/.config.toml.part").write_text("[run")
    extra = {"data_root": str(tmp_path), "split": "natural", "rounds": 1, "network": "linear"}
    run_cell(cell, tmp_path / "cell", extra, progress=False)
    assert (tmp_path / "cell/summary.json").is_file()


def test_an_impossible_run_leaves_no_folder(hierfl: Call, tmp_path: Path) -> None:
    for more in (("--quorum", 9), ("--participation", 1e-9, "--quorum", 2)):
        assert hierfl("run", "fedavg", *SMALL, *more)[0] == 2
        assert hierfl("run", "fedavg", *SMALL, *more, "--out", "o")[0] == 2
    assert not (tmp_path / "o").exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        ("tune", "fedavg", "lr=0.1,0.2", "--out", "no/x.json"),
        ("ablate", "pfedvem", "--rounds", 1, "--out", "no/x"),
        ("bench", "digits", "--out", "."),
        ("bench", "digits", "--out", ".", "--overwrite"),
        ("bench", "digits", "--out", "no/x.json"),
        ("table", "pfedvem-1", "--out", "no/x"),
    ],
)
def test_where_nothing_can_be_written_nothing_is_run(
    command: tuple[object, ...], hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hierfl.inference import Run
    from hierfl.inference.run.fit import Fit

    def never(*_: object, **__: object) -> Run:
        raise AssertionError("something was run")

    (tmp_path / "no").write_text("a file, and no folder")
    monkeypatch.setattr(Fit, "run", never)
    code, _, err = hierfl(*command, "--quiet")
    assert (code, len(lines(err))) == (2, 1), err


def test_links_in_a_folder_from_elsewhere_lead_nowhere(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    """Under the names that files are written by, as a lock, and in place of its own folders."""
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/state-000009.safetensors").write_text("precious")
    finished("pfedvem", "o")
    names = [p.relative_to(tmp_path / "o") for p in (tmp_path / "o").rglob("*") if p.is_file() and p.name != ".lock"]
    for name in names:
        (tmp_path / "o" / name.parent / f".{name.name}.part").symlink_to(precious)
    assert hierfl("run", "--resume", "o", "--quiet")[0] == 0
    assert hierfl("report", "o", "--quiet", "--no-features")[0] == 0
    assert not [p for p in (tmp_path / "o").rglob("*") if p.is_symlink() and not p.name.startswith(".")]
    (tmp_path / "o/.lock").unlink()
    (tmp_path / "o/.lock").symlink_to(precious)
    code, _, err = hierfl("run", "--resume", "o")
    assert (code, lines(err)) == (2, ["error: o/.lock is a symbolic link, and no lock of ours"])
    (tmp_path / "o/.lock").unlink()
    shutil.rmtree(tmp_path / "o/checkpoint")
    (tmp_path / "o/checkpoint").symlink_to(tmp_path / "home")
    for command in (("run", "--resume", "o"), ("run", "pfedvem", *SMALL, "--out", "o", "--overwrite")):
        code, _, err = hierfl(*command)
        assert (code, lines(err)) == (
            2, ["error: o/checkpoint is a symbolic link, and a run's folder holds its own"],
        )  # fmt: skip
    (tmp_path / ".bench.json.part").symlink_to(precious)
    check_writable(tmp_path / "bench.json")
    assert precious.read_text() == "precious"
    assert (tmp_path / "home/state-000009.safetensors").read_text() == "precious"


def test_a_pipe_in_a_folder_is_not_waited_for(hierfl: Call, tmp_path: Path, finished: Finished) -> None:
    finished("fedavg", "o")
    (tmp_path / "o/metrics.csv").unlink()
    os.mkfifo(tmp_path / "o/metrics.csv")
    code, _, err = hierfl("report", "o", "--no-features", "--quiet")
    assert (code, lines(err)) == (2, ["error: o/metrics.csv is a named pipe, not a regular file"])


def test_names_do_not_reach_the_terminal_as_commands(hierfl: Call, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,x\x1b]0;title\x07,site\n1,2,a\n3,4,b\n")
    code, _, err = hierfl("run", "mixed-effects", "--data", "t.csv", "--formula", "y ~ q + (1 | site)")
    assert (code, len(lines(err))) == (2, 1)
    assert "\\x1b]0;title\\x07" in err
    assert "\x1b" not in err
