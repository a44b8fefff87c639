"""A copy of a working tree with an interpreter of its own, of which ``hierfl`` is the copy.

The interpreter is a light virtual environment: it has the packages of the one that makes it, but not its ``hierfl``.
Whatever a test starts (xdist's workers, ``sys.executable``, ``hierfl``, Flower's scripts) starts that interpreter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

#: as setup.py has them
PACKAGES = {
    "hierfl": "hierfl",
    "hierfl.inference": "inference",
    "hierfl.models": "models",
    "hierfl.experiments": "experiments",
}
#: finds the packages as an editable install does: behind sys.path
FINDER = """import sys
from importlib.util import spec_from_file_location

FOLDERS = {folders!r}


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return spec_from_file_location(name, FOLDERS[name] + "/__init__.py") if name in FOLDERS else None


sys.meta_path.append(Finder)
"""
#: where an interpreter has its packages from; none is imported but hierfl, which imports nothing
ASKED = "import importlib.util as u; print(*(u.find_spec(name).origin for name in {names!r}), sep='\\n')"
#: a test that asks a worker, an interpreter that it starts, and the command
PROBE = """import subprocess, sys, shutil
from importlib import import_module
from pathlib import Path

def test_where_everything_is():
    found = [Path(import_module(name).__file__).parent for name in {names!r}]
    assert found == [Path(x) for x in {folders!r}]
    out = subprocess.run([sys.executable, "-c", {asked!r}], cwd="/", check=True, capture_output=True, text=True).stdout
    assert [Path(x).parent for x in out.split()] == found
    with open(shutil.which("hierfl")) as script:
        assert script.readline().strip() == f"#!{{sys.executable}}"
"""


def snapshot(root: Path, target: Path) -> None:
    """Copies what git tracks of a working tree, and what it does not ignore."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in names:
        if name and (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name, follow_symlinks=False)


class Copy:
    """A copy of a snapshot, and how processes are started on it.

    Args:
        taken: the snapshot.
        folder: an empty one, to hold the copy and its interpreter.

    Attributes:
        tree: the copy.
        python: its interpreter.
        environment: of processes that are started on it.

    Raises:
        SystemExit: if the interpreter finds another ``hierfl``.
    """

    def __init__(self, taken: Path, folder: Path) -> None:
        folder = folder.resolve()
        self.folder, self.tree, self.places = folder, folder / "c", folder / "v" / "bin"
        self.python = self.places / "python"
        shutil.copytree(taken, self.tree, symlinks=True)
        self._interpreter()
        dropped = {"PYTHONPATH", "PYTHONHOME", "PYTEST_ADDOPTS"}
        self.environment = {name: value for name, value in os.environ.items() if name not in dropped} | {
            "PATH": f"{self.places}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(folder / "v"),
            "OMP_NUM_THREADS": "1",
            "HIERFL_TEST_BUDGET": "off",  # a mutant that is seen on a busy machine alone is not seen
            "COLUMNS": "400",
        }
        done = self.ask([str(self.python), "-c", ASKED.format(names=list(PACKAGES))])
        if [Path(line).parent for line in done.stdout.split()] != self.homes:
            raise SystemExit(f"the copy's interpreter has another hierfl: {last_line(done.stdout + done.stderr)}")

    @property
    def homes(self) -> list[Path]:
        """The packages' folders."""
        return [self.tree / folder for folder in PACKAGES.values()]

    def _interpreter(self) -> None:
        """Makes the virtual environment."""
        venv.create(self.folder / "v", symlinks=True)
        (site,) = (self.folder / "v" / "lib").glob("python*/site-packages")
        folders = dict(zip(PACKAGES, map(str, self.homes), strict=True))
        (site / "finder_of_the_copy.py").write_text(FINDER.format(folders=folders))
        theirs = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
        # A .pth file in a folder that a .pth file adds is not read: no editable install comes with it.
        (site / "copy.pth").write_text("\n".join([*theirs, "import finder_of_the_copy", ""]))
        for script in Path(sys.executable).parent.iterdir():
            text = script.read_bytes() if script.is_file() else b""
            first, _, rest = text.partition(b"\n")
            if first.startswith(b"#!" + str(Path(sys.executable).parent / "python").encode()):
                (self.places / script.name).write_bytes(b"#!%b\n%b" % (str(self.python).encode(), rest))
                (self.places / script.name).chmod(0o755)

    def ask(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """A command's output; it writes no byte code, which would hide a mutant of the same second and size."""
        environment = {**self.environment, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True)

    def probe(self) -> None:
        """Asks a worker of pytest, an interpreter that it starts, and the command, whether they have the copy.

        Raises:
            SystemExit: if they have not.
        """
        path = self.tree / "tests" / "test_where_everything_is.py"
        asked = ASKED.format(names=list(PACKAGES))
        path.write_text(PROBE.format(names=list(PACKAGES), folders=[*map(str, self.homes)], asked=asked))
        done = self.ask([str(self.python), "-m", "pytest", "-p", "no:cacheprovider", "-n", "1", "--tb=line", str(path)])
        path.unlink()
        if done.returncode:
            raise SystemExit(f"pytest on the copy has another hierfl: {last_line(done.stdout + done.stderr)}")


def last_line(text: str) -> str:
    """Of what a process has said."""
    return text.strip().rpartition("\n")[2]
