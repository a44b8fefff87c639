"""Which hierfl is tested: the one that is installed, which must be this checkout's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from .paths import ROOT

#: folder of the checkout, and where it lies in an installed package
FOLDERS = {"hierfl": "", "inference": "inference", "models": "models", "experiments": "experiments"}


def import_installed() -> None:
    """Imports ``hierfl`` as an interpreter elsewhere would: here ``./hierfl`` and ``tests/hierfl`` are in the way."""
    inside = {ROOT, ROOT / "tests"}
    before = list(sys.path)
    sys.path[:] = [entry for entry in before if Path(entry or ".").resolve() not in inside]
    try:
        importlib.import_module("hierfl")
    finally:
        sys.path[:] = before


def stale() -> list[str]:
    """Files of the installed package that are not the checkout's, or that one of both lacks."""
    home = Path(sys.modules["hierfl"].__file__ or "").resolve().parent
    if home == ROOT / "hierfl":  # editable: the same files
        return []
    paths = []
    for folder, subfolder in FOLDERS.items():
        ours = {
            path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py") if "results" not in path.parts
        }
        theirs = {path.relative_to(home / subfolder) for path in (home / subfolder).rglob("*.py")}
        if not subfolder:
            theirs = {path for path in theirs if path.parts[0] not in FOLDERS}
        paths += [
            f"{folder}/{path}"
            for path in sorted(ours | theirs)
            if path not in ours & theirs
            or (ROOT / folder / path).read_bytes() != (home / subfolder / path).read_bytes()
        ]
    return paths


def checkout_path(file: str) -> Path | None:
    """Where a file of the installed package lies in the checkout, relative to it; None for any other file."""
    path = Path(file).resolve()
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        inside = path.relative_to(ROOT)
        return None if inside.parts[0] == "tests" else inside
    home = Path(sys.modules["hierfl"].__file__ or "").resolve().parent
    if not path.is_relative_to(home):
        return None
    inside = path.relative_to(home)
    return inside if inside.parts[0] in FOLDERS else Path("hierfl") / inside
