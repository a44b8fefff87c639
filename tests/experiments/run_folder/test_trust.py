"""Whose code is run: a folder from elsewhere runs none that its user has not named."""

from __future__ import annotations

import importlib.util
import os
import py_compile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import Call
from support.run_folders import SMALL, arrays, lines

from hierfl.experiments import trust

#: features of few test examples are soon drawn
OWN_DATA = ("--data", "d.npz", "--split", "natural", "--rounds", 2, "--network", "mlp:4", "--quiet")
METHOD = """
from pathlib import Path
from hierfl.models import FedAvg
Path({mark!r}).touch()
class Mine(FedAvg):
    name = "mine"
"""


@pytest.fixture
def stranger(hierfl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """A finished run of somebody else's method file, which leaves a mark where it is executed; none is there yet."""
    mark = tmp_path / "executed"
    arrays(tmp_path / "d.npz")
    (tmp_path / "theirs.py").write_text(METHOD.format(mark=str(mark)))
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "theirs"))
    monkeypatch.setattr(trust, "_named", set())
    assert hierfl("run", "theirs.py", *OWN_DATA, "--out", "r")[0] == 0
    monkeypatch.setenv("HIERFL_STATE", str(tmp_path / "mine"))
    trust._named.clear()
    mark.unlink()
    return lambda: mark


def test_a_folder_from_elsewhere_runs_no_code_unasked(
    hierfl: Call, tmp_path: Path, stranger: Callable[[], Path]
) -> None:
    mark = stranger()
    for command in (("run", "--resume", "r"), ("report", "r")):
        code, _, err = hierfl(*command)
        assert code == 2
        assert "which you have neither named nor run before: read it, then say --trust-code" in err
        assert len(lines(err)) == 1
    assert hierfl("compare", "r", "r")[0] == 2
    assert not mark.exists()
    assert hierfl("report", "r", "--quiet", "--trust-code")[0] == 0
    assert mark.exists()
    assert hierfl("run", "--resume", "r", "--quiet")[0] == 0  # from now on it is known


def test_what_a_user_names_needs_no_more_words(hierfl: Call, tmp_path: Path, stranger: Callable[[], Path]) -> None:
    assert hierfl("run", "theirs.py", "--resume", "r", "--quiet")[0] == 0
    assert stranger().exists()
    assert hierfl("run", "--resume", "r", "--quiet")[0] == 0


def test_a_comparison_runs_no_unknown_code(hierfl: Call, stranger: Callable[[], Path]) -> None:
    assert hierfl("run", "fedavg", *OWN_DATA, "--out", "f")[0] == 0
    code, out, err = hierfl("compare", "r", "f")
    assert code == 0, err
    assert out.startswith("theirs against fedavg")
    assert not stranger().exists()


@pytest.mark.parametrize("command", [("run", "--resume", "r"), ("report", "r"), ("compare", "r", "r")])
def test_a_changed_method_is_not_run(
    command: tuple[str, ...], hierfl: Call, tmp_path: Path, stranger: Callable[[], Path]
) -> None:
    """A folder's configuration names the file, and its digest: neither lets other code run."""
    config, evil = tmp_path / "r/config.toml", tmp_path / "evil.py"
    evil.write_text(METHOD.format(mark=str(stranger())) + "x = 1\n")
    config.write_text(config.read_text().replace("theirs.py", "evil.py"))
    code, _, err = hierfl(*command)
    assert code == 2
    assert len(lines(err)) == 1
    if command[0] != "compare":
        assert "has changed since" in err
    assert not stranger().exists()


def test_what_was_compiled_beside_a_method_is_not_run(hierfl: Call, tmp_path: Path) -> None:
    """Python would take a cache with the source's time and size for the source."""
    source, mark = tmp_path / "mine.py", tmp_path / "executed"
    hostile = METHOD.format(mark=str(mark))
    harmless = hostile.replace(".touch()", ".exists()")
    hostile += "#" * (len(harmless) - len(hostile))
    source.write_text(hostile)
    os.utime(source, (1e9, 1e9))
    py_compile.compile(str(source), importlib.util.cache_from_source(str(source)))
    source.write_text(harmless)
    os.utime(source, (1e9, 1e9))
    assert hierfl("run", "mine.py", *SMALL, "--out", "o")[0] == 0
    assert not mark.exists()


def test_trust_is_for_folders(hierfl: Call) -> None:
    code, _, err = hierfl("run", "fedavg", "--trust-code")
    assert (code, "--trust-code is for --resume" in err) == (2, True)
