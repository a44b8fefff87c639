"""The tests of every mutant: those of its own room first, then the others of the quick set, then slow ones if asked.

tests/house and tests/docs are left out: they see that a source is another text, not that it does another thing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .mutant_copy import PACKAGES, Copy, last_line, snapshot
from .mutant_draw import digest, splice

#: of which a failure would say nothing of behaviour
LEFT_OUT = ("tests/house", "tests/docs")
#: what pytest says of the test that failed, and why
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", re.MULTILINE)
#: what pytest says where conftest.py cannot be imported, and so no test runs
NO_CONFTEST = "ImportError while loading conftest"
#: pytest's exit codes: all passed, some failed, interrupted (as by an error of collection), usage, nothing to run
PASSED, SOME_FAILED, INTERRUPTED, USAGE, NOTHING = 0, 1, 2, 4, 5


class Settings(NamedTuple):
    """What is run: see mutants.py.

    Attributes:
        only: numbers of mutants; None for all.
        slow: the slow set on those that the quick set lets live.
        again: those that were run before, too.
        control: the sources as they are, alone.
        timeout: seconds of a phase.
        options: pytest's; paths among them are all that is run.
    """

    only: Sequence[int] | None = None
    slow: bool = False
    again: bool = False
    control: bool = False
    timeout: float = 1500.0
    options: tuple[str, ...] = ()


def write(path: Path, content: dict[str, Any]) -> None:
    """A JSON file, whole or as it was."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    new.replace(path)


def run(root: Path, listed: Sequence[Mapping[str, Any]], out: Path, how: Settings) -> None:
    """Runs what OUT does not have yet, and writes it after each.

    Args:
        root: of the working tree.
        listed: the mutants.
        out: the file of results.
        how: see :class:`Settings`.

    Raises:
        SystemExit: if a source has changed since the draw, or OUT has another list's mutants, or pytest runs no tests.
    """
    records = {mutant["number"]: mutant for mutant in json.loads(out.read_text())["mutants"]} if out.exists() else {}
    wanted = [{"number": 0, "file": ""}] if how.control else [*listed]
    wanted = [mutant for mutant in wanted if how.only is None or mutant["number"] in how.only]
    with tempfile.TemporaryDirectory(prefix="mut-") as taken:  # who goes on working changes nothing of this run
        snapshot(root, Path(taken))
        for mutant in wanted:
            number = mutant["number"]
            if mutant["file"] and digest((Path(taken) / mutant["file"]).read_bytes()) != mutant["digest"]:
                raise SystemExit(
                    f"{mutant['file']} has changed since mutant {number} was drawn: see --only, or draw again"
                )
            if {**records.get(number, mutant), **mutant} != records.get(number, mutant):
                raise SystemExit(f"{out} has another mutant {number}: it is of another list")
        probed = False
        for mutant in wanted:
            before = records.get(mutant["number"], {})
            quick = how.again or not before
            slow = how.slow and (quick or (before["killed_by"] is None and "slow" not in before))
            if not (quick or slow):
                continue
            record = {**before, **mutant}
            with tempfile.TemporaryDirectory(prefix="mut-", ignore_cleanup_errors=True) as folder:
                copy = Copy(Path(taken), Path(folder))
                if not probed:
                    copy.probe()
                    probed = True
                if mutant["file"]:
                    path = copy.tree / mutant["file"]
                    path.write_bytes(splice(path.read_bytes(), mutant))
                if quick:
                    record.pop("slow", None)
                    record |= tested(copy, mutant["file"], how, ())
                if slow and record["killed_by"] is None:
                    record["slow"] = tested(copy, mutant["file"], how, ("-m", "slow"))
            records[mutant["number"]] = record
            write(out, {"mutants": [records[number] for number in sorted(records)]})
            outcome = record.get("slow", record)
            print(
                f"mutant {mutant['number']}: {outcome['killed_by'] or 'survived'}, {outcome['seconds']:.0f} s",
                flush=True,
            )


def tested(copy: Copy, file: str, how: Settings, marked: tuple[str, ...]) -> dict[str, Any]:
    """What the phases find: the test that failed first, if one did; in which phase, why, and after how many seconds."""
    named = [option for option in how.options if (copy.tree / option.partition("::")[0]).exists()]
    options = [*marked, *(option for option in how.options if option not in named)]
    own = [path for path in own_tests(copy.tree, file) if not named or below(path, named)]
    start, sets = time.monotonic(), "slow set" if marked else "quick set"
    for phase, arguments in (
        (f"own room, {sets}", own),
        (f"whole {sets}", [*named, *(f"--ignore={path}" for path in own if path not in named)]),
    ):
        if arguments or phase.startswith("whole"):
            killed = first_failure(copy, [*options, *arguments], how.timeout)
            if killed:
                seconds = round(time.monotonic() - start, 1)
                return {"killed_by": killed[0], "phase": phase, "why": killed[1], "seconds": seconds}
    return {"killed_by": None, "phase": None, "why": None, "seconds": round(time.monotonic() - start, 1)}


def below(path: str, named: Sequence[str]) -> bool:
    """Whether a file is one of these, or in a folder of these."""
    return any(f"{path}/".startswith(f"{target.partition('::')[0].rstrip('/')}/") for target in named)


def own_tests(tree: Path, file: str) -> list[str]:
    """Test files of a source: called as it is, then those that name its module, then those of its room."""
    if not file:
        return []
    parts = Path(file).with_suffix("").parts
    package = next(name for name, folder in PACKAGES.items() if folder == parts[0])
    module = ".".join([package, *parts[1:]]).removesuffix(".__init__")
    called = re.compile(rf"test_{module.rpartition('.')[2].strip('_')}(_|$)")
    named = re.compile(rf"\b{re.escape(module)}\b(?!\.)|\bfrom {re.escape(module.rpartition('.')[0])} import .*"
                       rf"\b{module.rpartition('.')[2]}\b")  # fmt: skip
    files = [path for path in sorted((tree / "tests").rglob("test_*.py")) if not below(relative(tree, path), LEFT_OUT)]
    room = tree.joinpath("tests", *parts[:-1])
    while not room.is_dir():
        room = room.parent
    in_floor = [path for path in files if path.is_relative_to(tree / "tests" / parts[0])]
    ordered = [
        *(path for path in in_floor if called.match(path.stem)),
        *(path for path in files if named.search(path.read_text())),
        *(path for path in files if path.is_relative_to(room) and room.parent != tree / "tests"),
    ]
    return [relative(tree, path) for path in dict.fromkeys(ordered)]


def relative(tree: Path, path: Path) -> str:
    """A path as pytest is given it."""
    return path.relative_to(tree).as_posix()


def first_failure(copy: Copy, arguments: Sequence[str], timeout: float) -> tuple[str, str] | None:
    """The test that failed, and why; ("timeout", how long) after the timeout; None if all pass.

    Raises:
        SystemExit: if pytest ends otherwise.
    """
    log = copy.folder / "log"
    command = [
        str(copy.python), "-m", "pytest", "-x", "-rfE", "--tb=line", "--color=no", "-p", "no:cacheprovider",
        f"--basetemp={copy.folder / 't'}", *(f"--ignore={folder}" for folder in LEFT_OUT), *arguments,
    ]  # fmt: skip
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=copy.tree, env=copy.environment, stdout=output, stderr=output, start_new_session=True
        )
    code: int | None = None
    try:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout)
    finally:
        end(process)
    text = log.read_text(errors="replace")
    if code is None:
        return "timeout", f"more than {timeout:g} seconds"
    if code in (PASSED, NOTHING):
        return None
    failed = FAILED.search(text)
    if code in (SOME_FAILED, INTERRUPTED) and failed:
        return failed[1], (failed[2] or "")[:200]
    if code == USAGE and NO_CONFTEST in text:
        return "tests/conftest.py", last_line(text)[:200]
    raise SystemExit(f"pytest ended with {code} and named no test: {last_line(text)}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that has not ended, and all that it has started."""
    for pid in started(process.pid) if process.poll() is None else []:
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def started(pid: int) -> list[int]:
    """All processes that a process has started, and theirs."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    pids, new = [], {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        pids += sorted(new)
    return pids
