"""Which code of hierfl runs here: server and sites compare it before they compute with one another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

#: the packages that are installed
PACKAGES = ("hierfl", "hierfl.inference", "hierfl.models", "hierfl.experiments")


@cache
def code_digest() -> str:
    """A fingerprint of hierfl's own Python files, 16 hexadecimal digits.

    It is the same for an editable and for any other installation, and for files with either kind of line ends.
    """
    digest = hashlib.sha256()
    for name, path in sorted(own_files().items()):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name} {hashlib.sha256(text).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def own_files() -> dict[str, Path]:
    """{module: its file}, of all that is installed."""
    files: dict[str, Path] = {}
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            files |= dict(_files(Path(folder), package))
    return files


def _files(folder: Path, package: str) -> Iterator[tuple[str, Path]]:
    """The files of a package and of the packages in it: another folder beside them is not installed."""
    for path in folder.iterdir():
        if path.suffix == ".py" and path.is_file():
            yield f"{package}.{path.stem}", path
        elif (path / "__init__.py").is_file():
            yield from _files(path, f"{package}.{path.name}")
