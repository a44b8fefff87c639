"""What .ci/run does, step by step; any failure fails the run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from shards import ROOT, choose, git, read

#: what lint, types and docs need beside what the tests have, from pyproject.toml's extras
TOOLS = ("dev", "docs")
#: GiB that an environment with a CUDA build of torch, and the files of the tests, take
ROOM = 9.0


#: lines of a failed step that are printed again at the very end: only the last part of what is printed may be kept
LAST_LINES = 60


class Failed(Exception):
    """A step has failed; what it printed has been printed.

    Attributes:
        last: its last lines.
    """

    def __init__(self, name: str, last: list[str]) -> None:
        super().__init__(name)
        self.last = last


def roomy() -> str:
    """A folder for the environment and all temporary files: the usual one, or where it has no room the one of most.

    An installation of several GB has failed on a disk that was nearly full beside one that was empty.
    """
    places = [tempfile.gettempdir(), "/var/tmp", str(ROOT.parent), str(Path.home()), "/dev/shm"]
    writable = [folder for folder in places if os.access(folder, os.W_OK | os.X_OK)]
    free = {folder: shutil.disk_usage(folder).free / 2**30 for folder in writable}
    usual = places[0]
    best = usual if free.get(usual, 0.0) >= ROOM else max(free, key=lambda folder: free[folder])
    print(f"room: {free[best]:.1f} GiB in {best}; {free.get(usual, 0.0):.1f} in {usual}")
    return best


def environment(venv: Path) -> dict[str, str]:
    """Environment variables of a process in a virtual environment."""
    return {**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)}


def step(name: str, command: str, venv: Path, cwd: Path = ROOT, log: Path | None = None) -> None:
    """Runs a command of bash, and says how long it took.

    Raises:
        Failed: if it does not end well.
    """
    start, lines = time.monotonic(), deque[str](maxlen=200)
    if log is None:
        print(f"== {name}", flush=True)
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", command], cwd=cwd, env=environment(venv), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
    ) as done, open(log or os.devnull, "w", encoding="utf-8") as kept:  # fmt: skip
        assert done.stdout is not None
        for line in done.stdout:
            lines.append(line.rstrip("\n"))
            kept.write(line)
            if log is None:
                print(line, end="", flush=True)
    took = time.monotonic() - start
    if done.returncode:
        print(f"== {name}: FAILED after {took:.0f} s", *(lines if log else []), sep="\n", flush=True)
        raise Failed(name, list(lines)[-LAST_LINES:])
    print(f"== {name}: {took:.0f} s", flush=True)


def readme_commands() -> list[str]:
    """The two commands are read from the README, so that it cannot promise what is not tested."""
    blocks = re.findall(
        r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    commands = [line for block in blocks for line in block.splitlines()]
    if len(commands) != 2:
        sys.exit(f"README.md must hold exactly two commands, it holds {len(commands)}")
    return commands


def beside(work: Path, venv: Path, failed: list[Failed]) -> None:
    """Lint, docs, types: in an environment of their own, which sees the packages of the first and a plain install."""
    tools, log = work / "tools", work / "beside.log"
    source = work / "source"
    nice = "nice -n 5 "
    try:
        step("tools: environment", f"{sys.executable} -m venv {tools}", venv, log=log)
        (site,), (own,) = venv.glob("lib/python*/site-packages"), tools.glob("lib/python*/site-packages")
        (own / "shared.pth").write_text(f"{site}\n")
        extras = ",".join(TOOLS)
        source.mkdir()
        for name in ("hierfl", "inference", "models", "experiments"):
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        step("tools: a plain install", f"{nice}pip install --quiet '{source}[{extras}]'", tools, work, log)
        step("ruff", f"{nice}python -m ruff format --check . && {nice}python -m ruff check .", tools, log=log)
        # elsewhere: here ./hierfl is found, without its upper floors.
        docs = f"{nice}python -m sphinx -W --keep-going -q -b html {ROOT / 'docs'} {work / 'docs'}"
        step("docs", docs, tools, work, log)
        step("mypy", f"{nice}python -m mypy --config-file {ROOT / 'pyproject.toml'} -p hierfl", tools, work, log)
        seen = int(re.findall(r"in (\d+) source files", log.read_text(encoding="utf-8"))[-1])
        floors = ("hierfl", "inference", "models", "experiments")
        files = [path for floor in floors for path in (ROOT / floor).rglob("*.py") if "results" not in path.parts]
        # It counts folders without code, such as models/settings, too.
        if seen < len(files):
            raise Failed(f"mypy saw {seen} of {len(files)} files", [])
        few = "tests/models/test_pfedvem.py tests/house/test_installed.py"
        step("tests of the clone by a plain install", f"{nice}python -m pytest {few}", tools, log=log)
    except Failed as error:
        failed.append(error)


def browser() -> None:
    """Pages are looked at by a browser, where the distribution has one."""
    if shutil.which("chromium") or os.getuid() or not shutil.which("apt-get"):
        return
    command = "apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(["bash", "-c", command], env=quiet, capture_output=True).returncode:
        print("no browser could be installed: its tests skip")


def main(what: str) -> None:
    """Everything, in order."""
    shards, head = read(), git("rev-parse", "HEAD").strip()
    chosen = [(shard, "all of them") for shard in shards] if what == "--all" else choose(shards, head)
    print(f"slow tests: {len(chosen)} of {len(shards)} shards, {sum(s.seconds for s, _ in chosen):.0f} CPU seconds")
    for shard, why in chosen:
        print(f"  {shard.name} ({shard.seconds:.0f} s, {len(shard.tests)} tests): {why}")
    if what == "--plan":
        return
    start, failed = time.monotonic(), list[Failed]()
    job, tests = readme_commands()
    os.environ["PIP_NO_CACHE_DIR"] = "1"  # each package once on the disk
    os.environ["TMPDIR"] = tempfile.tempdir = roomy()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        venv = work / "venv"
        browser()
        step("a fresh virtual environment", f"{sys.executable} -m venv {venv}", venv)
        install, _, pytest = tests.partition(" && ")
        step(install, install, venv)
        names = " ".join(f"'{test}'" for shard, _ in chosen for test in shard.tests)
        # The quick set has a budget of CPU seconds, and is not disturbed; beside the others all else is checked.
        running = threading.Thread(target=beside, args=(work, venv, failed))
        for name, command in (
            (pytest, pytest),
            (job, job),
            ("the slow tests of this run", f"pytest -m slow {names}"),
        ):
            try:
                step(name, command, venv)
            except Failed as error:
                failed.append(error)
            if name == job:
                running.start()
        running.join()
    print(f"== {time.monotonic() - start:.0f} s in all")
    if failed:
        for error in failed:
            print(f"== {error}: its last lines, again", *error.last, sep="\n")
        sys.exit(f"== failed: {'; '.join(map(str, failed))}")
    print("== all well")


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--plan"], ["--all"]):
        sys.exit("usage: .ci/run [--plan | --all]")
    main(sys.argv[1] if sys.argv[1:] else "")
