"""What is shipped: the archive holds all that git does, and what is imported is declared."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from support.paths import ROOT

FLOORS = ("hierfl", "inference", "models", "experiments")
#: of packages that are called otherwise than what is imported of them
CALLED = {
    "dp-accounting": "dp_accounting",
    "pillow": "PIL",
    "pyro-ppl": "pyro",
    "scikit-learn": "sklearn",
    "tomli-w": "tomli_w",
}

#: extras of the same name, none of which a test needs: tests of trackers that are not installed are skipped
TRACKERS = ("tensorboard", "mlflow", "wandb")


def shipped() -> list[Path]:
    return [p for floor in FLOORS for p in (ROOT / floor).rglob("*.py") if "results" not in p.parts]


def test_the_archive_holds_all_that_git_does(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not in a clone: there is nothing to compare the archive with")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [name for name in tracked.split("\0") if name and name != ".gitignore" and (ROOT / name).is_file()]
    for name in files:  # a copy: building leaves things behind
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "copy" / name)
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "copy", check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert sorted(set(files) - inside) == []


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(
            requirement
            for extra in ("sun397", "parquet", "flower", "privacy", "serve")
            for requirement in project["optional-dependencies"][extra]
        ),
    ]
    declared = {re.split(r"[<>=!~\[ ]", requirement, maxsplit=1)[0] for requirement in wanted}
    known = {CALLED.get(name, name) for name in declared} | {"hierfl", *TRACKERS} | set(sys.stdlib_module_names)
    assert set(TRACKERS) <= project["optional-dependencies"].keys()
    imported: dict[str, Path] = {}
    for path in shipped():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            imported |= {name.partition(".")[0]: path for name in names}
    assert {name: str(path) for name, path in imported.items() if name not in known} == {}
    assert {name for name in declared if not importlib.metadata.version(name)} == set()
