"""Which hierfl is tested: the installed one, which must be the checkout's."""

from __future__ import annotations

import importlib
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from support import installed
from support.installed import stale
from support.paths import ROOT

import hierfl


def test_every_floor_is_there_however_it_was_installed() -> None:
    floors = [importlib.import_module(f"hierfl.{name}") for name in ("inference", "models", "experiments")]
    homes = [Path(str(floor.__file__)).parent for floor in floors]
    home = Path(str(hierfl.__file__)).parent
    assert homes == [(ROOT if home == ROOT / "hierfl" else home) / home_of.name for home_of in homes]
    assert stale() == []


def test_another_install_is_not_taken_for_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed file, one that is missing, and one more are each found."""
    for folder, subfolder in installed.FOLDERS.items():
        shutil.copytree(ROOT / folder, tmp_path / "hierfl" / subfolder, dirs_exist_ok=True)
    monkeypatch.setattr(sys.modules["hierfl"], "__file__", str(tmp_path / "hierfl" / "__init__.py"))
    shutil.rmtree(tmp_path / "hierfl" / "experiments" / "results", ignore_errors=True)
    assert stale() == []
    (tmp_path / "hierfl" / "models" / "pfedvem.py").write_text("changed")
    (tmp_path / "hierfl" / "rng.py").unlink()
    (tmp_path / "hierfl" / "inference" / "more.py").write_text("")
    assert stale() == ["hierfl/rng.py", "inference/more.py", "models/pfedvem.py"]


def test_files_beside_the_code_are_installed() -> None:
    """Each has a name that pyproject.toml lists; committed results are no part of an installation."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    for floor in ("hierfl", "inference", "models", "experiments"):
        for path in (ROOT / floor).rglob("*"):
            inside = path.relative_to(ROOT / floor)
            if path.is_file() and path.suffix not in (".py", ".pyc") and inside.parts[0] != "results":
                assert any(path.match(pattern) for pattern in listed), path
