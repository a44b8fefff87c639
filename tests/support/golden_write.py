"""Runs golden cases with whatever hierfl is installed."""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import golden_api
from golden_cases import CASES, Case
from golden_data import write_data
from golden_files import ROOT
from golden_installed import command, found, new_words

DATA = "_data"
#: a picture of one pixel
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


class Stopped(Exception):
    """A case asked for a run to be stopped, and it was not."""


def write(out: Path, names: Sequence[str], jobs: int = 1, old_noise: bool = False) -> list[str]:
    """Runs cases into OUT/CASE; returns those that failed. What they ran on is in OUT/_data."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ["HIERFL_STATE"] = str(out.resolve() / DATA / "state")
    write_data(out / DATA)
    (out / ROOT).write_text(str(out.resolve()))
    if jobs == 1:
        _prepare(old_noise)
        return [name for name in names if not _one((out.resolve(), name))]
    from multiprocessing import get_context

    with get_context("spawn").Pool(jobs, _prepare, (old_noise,)) as pool:
        done = pool.imap(_one, [(out.resolve(), name) for name in names], chunksize=4)
        return [name for name, good in zip(names, done, strict=True) if not good]


def _prepare(old_noise: bool) -> None:
    if old_noise:
        import old_noise as noise

        noise.install()


def _one(task: tuple[Path, str]) -> bool:
    out, name = task
    folder, case, start = out / name, CASES[name], time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)
    try:
        with _pictures(case.figures):
            run(case)
    except (Exception, SystemExit) as error:
        if not (case.fails and type(error).__name__ == "UserError"):
            (folder / "FAILED.txt").write_text(traceback.format_exc())
            print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
            return False
    else:
        if case.fails:
            (folder / "FAILED.txt").write_text("no error was raised\n")
            print(f"{name}: FAILED: should have been refused", flush=True)
            return False
    print(f"{name}: {time.perf_counter() - start:.2f} s", flush=True)
    return True


def run(case: Case) -> None:
    """Runs the lines of a case in the current folder."""
    for line in case.lines:
        first, _, rest = line.partition(" ")
        if first == "api":
            golden_api.run(rest)
        elif first == "stop":  # "stop K run ...": after K evaluations
            number, _, rest = rest.partition(" ")
            with _stopped_after(int(number)):
                _call(rest)
        elif first == "copy":  # a file that a case changes or runs
            source, target = rest.split()
            golden_api.copy_method_file(source, Path(target))
        else:
            _call(line)


def _call(line: str) -> None:
    """A command in this process: of the command line, or the main of a module of experiments."""
    words = new_words(line.replace("@", "../../_data/"))
    if words[0] == "module" and command(words[0]) is None:
        with redirect_stdout(StringIO()):
            import_module(f"hierfl.experiments.{words[1]}").main(words[2:])
        return
    code = found("app")(words, standalone_mode=False)
    if isinstance(code, int) and code:
        raise KeyboardInterrupt if code == 130 else SystemExit(code)


@contextmanager
def _stopped_after(evaluations: int) -> Iterator[None]:
    """Interrupts a run once metrics.csv was written so many times; the clock has checkpoints written at every round."""
    replace, clock, seen, ahead = os.replace, time.perf_counter, 0, 0.0

    def counted(source: object, target: object, **options: object) -> None:
        nonlocal seen, ahead
        replace(source, target, **options)  # type: ignore[call-overload]
        if os.path.basename(str(target)) == "metrics.csv":
            seen, ahead = seen + 1, ahead + 1e6
            if seen == evaluations:
                raise KeyboardInterrupt

    os.replace, time.perf_counter = counted, lambda: clock() + ahead
    try:
        yield
    except KeyboardInterrupt:
        return
    except Exception as error:
        if type(error).__name__ != "Abort":  # (what some versions of typer make of it)
            raise
        return
    finally:
        os.replace, time.perf_counter = replace, clock
    raise Stopped(f"the run was not stopped: metrics.csv was written {seen} times")


@contextmanager
def _pictures(drawn: bool) -> Iterator[None]:
    """Where a case is not about figures, one pixel stands for each: they would take most of the time."""
    from matplotlib.figure import Figure

    save, find = Figure.savefig, Figure.findobj

    def pixel(self: Figure, target: object, **options: object) -> None:
        if hasattr(target, "write"):
            target.write(PIXEL)
        else:
            Path(str(target)).write_bytes(PIXEL)

    if not drawn:
        Figure.savefig, Figure.findobj = pixel, lambda self, *a, **k: []  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Figure.savefig, Figure.findobj = save, find  # type: ignore[method-assign]
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
