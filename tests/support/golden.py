"""Golden runs: the same small runs with two checkouts, compared bit for bit.

    python tests/support/golden.py checkouts A B [--grid FILE] [--case PATTERN] [--jobs N] [--out DIR]
    python tests/support/golden.py write OUT [--grid FILE] [--case PATTERN] [--jobs N]
    python tests/support/golden.py compare A B [--grid FILE] [--case PATTERN]
    python tests/support/golden.py list [--grid FILE] [--case PATTERN]

``checkouts`` does all of it: A and B are folders of checkouts, or git revisions of this repository. ``write`` runs the
cases of a grid file (golden.toml) with whatever ``hierfl`` the interpreter has; what the same sources have written
there is not run again. ``compare`` compares all that two folders hold; the grid file says what may differ, and why.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent

if "support" not in sys.modules:  # as a command; tests/ itself stays off the path, since it has a folder hierfl
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != HERE]
    sys.modules["support"] = ModuleType("support")
    sys.modules["support"].__path__ = [str(HERE)]

from support.golden_compare import compare  # noqa: E402
from support.golden_grid import Grid  # noqa: E402


class Stop(Exception):
    """What cannot be done, in one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if something differs or is missing, or if a fault has broken off a case; 2 for bad use."""
    parser = argparse.ArgumentParser(prog="golden.py", description="The same small runs with two checkouts, compared.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in (("checkouts", "ab"), ("write", ("out",)), ("compare", "ab"), ("list", "")):
        command = commands.add_parser(name)
        for argument in places:
            command.add_argument(argument)
        command.add_argument("--grid", type=Path, default=HERE / "golden.toml", metavar="FILE")
        command.add_argument("--case", default="*", metavar="PATTERN", help="only cases such as 'grid/poisson/*'")
        command.add_argument("--jobs", type=int, default=1, help="processes that write")
        command.add_argument("--out", type=Path, help="of checkouts: where both are written, and stay")
        command.add_argument("--checkout", type=Path, help="of write: whose hierfl it has to be")
    options = parser.parse_args(arguments)
    try:
        grid = Grid.read(options.grid)
        names = grid.matching(options.case)
        if not names:
            raise Stop(f"no case of {options.grid} is called {options.case}")
        if options.command == "list":
            print(*(f"{name}\n    {grid.cases[name]}" for name in names), f"{len(names)} cases", sep="\n")
            return 0
        if options.command == "compare":
            return compare(Path(options.a), Path(options.b), grid, names)
        if options.command == "checkouts":
            return checkouts(options.a, options.b, grid, options)
        from support.golden_write import check_checkout, write

        if options.checkout and (stranger := check_checkout(options.checkout.resolve())):
            raise Stop(stranger)
        return 1 if write(Path(options.out), grid, names, options.jobs) else 0
    except Stop as stop:
        print(f"golden.py: {stop}", file=sys.stderr)
        return 2


def checkouts(a: str, b: str, grid: Grid, options: argparse.Namespace) -> int:
    """Runs cases with both checkouts, each in a process of its own, and compares them."""
    codes = []
    with tempfile.TemporaryDirectory(prefix="golden-") as temporary:
        out = options.out.resolve() if options.out else Path(temporary)
        for name, which in (("a", a), ("b", b)):
            with laid_out(which, Path(temporary) / f"worktree-{name}") as checkout:
                print(f"{name.upper()}: {which} ({checkout})", flush=True)
                links = linked(checkout, Path(temporary) / f"packages-{name}")
                command = [sys.executable, __file__, "write", out / name, "--checkout", checkout]
                command += ["--grid", options.grid.resolve(), "--case", options.case, "--jobs", str(options.jobs)]
                env = os.environ | {"PYTHONPATH": str(links)}
                codes.append(subprocess.run(command, env=env, cwd=temporary).returncode)
            if codes[-1] not in (0, 1):
                raise Stop(f"{which} could not be run")
        return max(*codes, compare(out / "a", out / "b", grid, grid.matching(options.case)))


@contextmanager
def laid_out(which: str, worktree: Path) -> Iterator[Path]:
    """The folder of a checkout; of a revision a worktree, which is removed again."""
    if (Path(which) / "hierfl" / "__init__.py").is_file():
        yield Path(which).resolve()
        return
    git = ["git", "-C", str(HERE), "worktree"]
    made = subprocess.run([*git, "add", "--detach", str(worktree), which], capture_output=True, text=True)
    if made.returncode:
        raise Stop(f"{which} is no folder of a checkout, and no revision: {made.stderr.strip().splitlines()[-1]}")
    try:
        yield worktree.resolve()
    finally:
        subprocess.run([*git, "remove", "--force", str(worktree)], check=True, capture_output=True)


def linked(checkout: Path, folder: Path) -> Path:
    """A folder for PYTHONPATH, in which hierfl is made of links to a checkout's four folders (see setup.py)."""
    (folder / "hierfl").mkdir(parents=True)
    for entry in [
        *(checkout / "hierfl").iterdir(),
        *(checkout / package for package in ("inference", "models", "experiments")),
    ]:
        if entry.name != "__pycache__":
            (folder / "hierfl" / entry.name).symlink_to(entry)
    return folder


if __name__ == "__main__":
    sys.exit(main())
