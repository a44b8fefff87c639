"""The slow tests in shards: which there are, what they touch, and which of them a run takes.

    python .ci/shards.py measure          runs all slow tests, and writes .ci/slow.json again
    python .ci/shards.py measure FILE     takes the seconds from a file that HIERFL_TEST_SECONDS=FILE has written
    python .ci/shards.py run NAME ...     runs these shards, and records HEAD as the commit at which they passed
    python .ci/shards.py run --oldest N   the N shards that passed the most commits ago

A shard is some tests of one folder, at most :data:`LIMIT` CPU seconds in all, or one test that takes longer. It touches
the packages that its files are the tests of, or import, by way of tests/support too. The record has the commit at which
a shard last passed. A run takes at most two shards that touch most of what has changed since then, and one more: the
one that passed the most commits ago if that is more than :data:`LONG_AGO`, else one that the hash of HEAD chooses.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / ".ci" / "slow.json"
#: CPU seconds of a shard on the machine that measured them
LIMIT = 180.0
#: shards of a run that touch what has changed
TOUCHED = 2
#: commits after which a shard that has not passed is due
LONG_AGO = 100
FLOORS = ("hierfl", "inference", "models", "experiments")


@dataclass(frozen=True)
class Shard:
    """Some slow tests.

    Attributes:
        name: the folder of its tests, and a number.
        tests: {name of a test without its parameters: CPU seconds of all its slow cases}.
        touches: packages of the house.
        estimated: tests whose seconds were not measured on their own, or not since they changed.
        passed: the commit at which all of them last passed; "" where that is not recorded.
    """

    name: str
    tests: Mapping[str, float]
    touches: tuple[str, ...]
    estimated: tuple[str, ...] = ()
    passed: str = ""

    @property
    def seconds(self) -> float:
        """CPU seconds of all its tests."""
        return sum(self.tests.values())

    @property
    def files(self) -> set[str]:
        """Files of its tests."""
        return {test.partition("::")[0] for test in self.tests}


def package_of(path: str) -> str:
    """The folder of a file of the house, "" for any other file."""
    return str(Path(path).parent) if Path(path).parts[:1] and Path(path).parts[0] in FLOORS else ""


@cache
def imported(path: Path) -> frozenset[str]:
    """Packages of the house that a test file imports, itself or by what it shares with others."""
    known: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "support" and (shared := ROOT / "tests" / "support" / f"{parts[1]}.py").is_file():
                known |= imported(shared)
            elif parts[0] == "hierfl":
                known |= {folder_of(parts[1:])}
    return frozenset(known - {""})


def folder_of(parts: list[str]) -> str:
    """The package in which a name of ``hierfl`` is: its folder in the checkout."""
    folder = Path(parts[0]) if parts and parts[0] in FLOORS[1:] else Path("hierfl")
    for part in parts if folder == Path("hierfl") else parts[1:]:
        if not (ROOT / folder / part).is_dir():
            break
        folder = folder / part
    return str(folder)


def touched_by(files: Iterable[str]) -> tuple[str, ...]:
    """Packages that test files are the tests of, or import."""
    known: set[str] = set()
    for name in files:
        own = str(Path(name).relative_to("tests").parent)
        known |= imported(ROOT / name) | ({own} if (ROOT / own).is_dir() and own != "." else set())
    return tuple(sorted(known))


def cut(seconds: Mapping[str, float], estimated: Iterable[str] = ()) -> list[Shard]:
    """Shards of tests with so many CPU seconds each, folder by folder."""
    shards: list[Shard] = []
    by_folder: dict[str, dict[str, float]] = {}
    for test in sorted(seconds):
        by_folder.setdefault(str(Path(test.partition("::")[0]).parent.relative_to("tests")), {})[test] = seconds[test]
    for folder, tests in by_folder.items():
        parts: list[dict[str, float]] = [{}]
        for test, taken in tests.items():
            if parts[-1] and sum(parts[-1].values()) + taken > LIMIT:
                parts.append({})
            parts[-1][test] = taken
        for number, part in enumerate(parts, 1):
            files = {test.partition("::")[0] for test in part}
            guessed = tuple(sorted(part.keys() & {*estimated}))
            shards.append(Shard(f"{folder}-{number}", part, touched_by(files), guessed))
    return shards


def read() -> list[Shard]:
    """The shards as they are recorded."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return [
        Shard(name, entry["tests"], tuple(entry["touches"]), tuple(entry.get("estimated", ())), entry.get("passed", ""))
        for name, entry in record.items()
    ]


def write(shards: Iterable[Shard]) -> None:
    """Records them. Shards that are cut again keep the commit at which the same tests passed."""
    before = {frozenset(shard.tests): shard.passed for shard in read()} if RECORD.exists() else {}
    record = {
        shard.name: {
            "seconds": round(shard.seconds, 1), "touches": shard.touches,
            **({"passed": passed} if (passed := shard.passed or before.get(frozenset(shard.tests), "")) else {}),
            "tests": {test: round(taken, 1) for test, taken in shard.tests.items()},
            **({"estimated": shard.estimated} if shard.estimated else {}),
        }
        for shard in shards
    }  # fmt: skip
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def git(*arguments: str) -> str:
    """What git says."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


@cache
def is_commit(name: str) -> bool:
    """Whether the history at hand has such a commit."""
    known = subprocess.run(["git", "cat-file", "-e", f"{name}^{{commit}}"], cwd=ROOT, capture_output=True)
    return bool(name) and not known.returncode


@cache
def changed(since: str) -> frozenset[str]:
    """Files that have changed since a commit, uncommitted ones too; all where it is not in the history at hand."""
    if not is_commit(since):
        return frozenset(git("ls-files").splitlines())
    new = git("ls-files", "-o", "--exclude-standard")
    return frozenset([*git("diff", "--name-only", since).splitlines(), *new.splitlines()])


def choose(
    shards: list[Shard], head: str, files_since: Callable[[str], Collection[str]] = changed,
    ago: Callable[[Shard], float] | None = None,
) -> list[tuple[Shard, str]]:  # fmt: skip
    """What a run takes, and why.

    Args:
        shards: all of them.
        head: the commit that is tested; its hash chooses among equals, and the last one.
        files_since: the files that have changed since a commit.
        ago: commits since a shard passed, infinite where that is not recorded; None for :func:`commits_ago`.
    """
    age = ago or commits_ago

    def turn(shard: Shard) -> str:
        return hashlib.sha256(f"{head} {shard.name}".encode()).hexdigest()

    def near(shard: Shard) -> tuple[list[str], list[str]]:
        files = files_since(shard.passed)
        packages = {package_of(file) for file in files} - {""}
        return sorted(shard.files & set(files)), sorted(packages & set(shard.touches))

    def rank(shard: Shard) -> tuple[int, str]:
        own, theirs = near(shard)
        return -3 * len(own) - len(theirs), turn(shard)

    chosen = []
    for shard in sorted((shard for shard in shards if any(near(shard))), key=rank)[:TOUCHED]:
        both = [name for names in near(shard) for name in names]
        chosen.append((shard, f"touches {', '.join(both[:4])}{' and more' if len(both) > 4 else ''}"))
    left = sorted((shard for shard in shards if shard not in [taken for taken, _ in chosen]), key=turn)
    late = max(left, key=lambda shard: (age(shard), shard.name), default=None)
    if late is not None and age(late) > LONG_AGO:
        known = f"passed {age(late):.0f} commits ago" if age(late) < math.inf else "has no record of having passed"
        return [*chosen, (late, f"is due: it {known}")]
    return [*chosen, *((shard, f"the turn of commit {head[:8]}") for shard in left[:1])]


def commits_ago(shard: Shard) -> float:
    """Commits since a shard passed: infinite where that is not recorded, -1 where the history at hand does not say."""
    return _commits_since(shard.passed) if shard.passed else math.inf


@cache
def _commits_since(commit: str) -> float:
    return float(git("rev-list", "--count", f"{commit}..HEAD")) if is_commit(commit) else -1.0


def oldest(shards: list[Shard], number: int) -> list[str]:
    """The names of those that passed the most commits ago; first those of which that is not recorded."""
    return [shard.name for shard in sorted(shards, key=commits_ago, reverse=True)[:number]]


def run(names: list[str]) -> int:
    """Runs shards one after the other, and records those that pass; how many did not."""
    shards = {shard.name: shard for shard in read()}
    if names[:1] == ["--oldest"]:
        names = oldest(list(shards.values()), int(names[1]))
    if unknown := [name for name in names if name not in shards]:
        sys.exit(f"no shard is called {', '.join(unknown)}; there are {', '.join(shards)}")
    if git("status", "--porcelain", "--", ".", f":!{RECORD.relative_to(ROOT)}").strip():
        sys.exit("what passes is recorded with HEAD, and files here are not committed: commit them first")
    head, failed = git("rev-parse", "HEAD").strip(), 0
    for name in names:
        print(f"== {name}: {shards[name].seconds:.0f} CPU seconds", flush=True)
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-m", "slow", *shards[name].tests]
        if subprocess.run(command, cwd=ROOT).returncode:
            print(f"== {name}: FAILED", flush=True)
            failed += 1
        else:  # each at once: the next may be stopped
            write(replace(shard, passed=head) if shard.name == name else shard for shard in read())
    return failed


def measure(file: Path | None) -> None:
    """Runs all slow tests, or takes what was measured, and writes the record."""
    with tempfile.TemporaryDirectory() as folder:
        written = file or Path(folder) / "seconds.json"
        if file is None:
            environment = {**os.environ, "HIERFL_TEST_SECONDS": str(written), "HIERFL_TEST_BUDGET": "off"}
            subprocess.run([sys.executable, "-m", "pytest", "-m", "slow"], cwd=ROOT, env=environment, check=True)
        seconds: dict[str, float] = {}
        for name, taken in json.loads(written.read_text()).items():
            if name.startswith("tests/"):
                test = name.partition("[")[0]
                seconds[test] = seconds.get(test, 0.0) + taken
    write(cut(seconds))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["measure", *file] if len(file) <= 1:
            measure(Path(file[0]) if file else None)
        case ["run", "--oldest", number] if number.isdecimal():
            sys.exit(run(["--oldest", number]))
        case ["run", first, *more] if first != "--oldest":
            sys.exit(run([first, *more]))
        case _:
            sys.exit(__doc__)
