"""Runs golden cases with whatever hierfl is installed."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import tomli_w
from support.golden_fits import fit
from support.golden_grid import Grid, table

PACKAGES = ("hierfl", "hierfl.inference", "hierfl.models", "hierfl.experiments")


def write(out: Path, grid: Grid, names: Sequence[str], jobs: int = 1) -> list[str]:
    """Runs cases into OUT/NAME, but for those that the same sources have written there, of the same words and data.

    Of each there are the run's folder; ``rounds.npz``, what clients sent and the shared values; ``error.txt`` of one
    that was refused; and, once it is done, ``case.json``.

    Returns:
        Names of cases that a fault has broken off. (A refusal is an answer, and no fault.)
    """
    start, out = time.perf_counter(), out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    data = table(**grid.data)
    data.to_csv(out / "table.csv", index=False)
    data.drop(columns="site").to_csv(out / "sample.csv", index=False)
    same = {"data": hashlib.sha256((out / "table.csv").read_bytes()).hexdigest(), "sources": sources()}
    tasks = []
    for name in names:
        about, done = {"words": grid.cases[name], **same}, out / name / "case.json"
        if not done.is_file() or json.loads(done.read_text()) != about:
            tasks.append((out, name, about))
    if jobs > 1:
        with get_context("spawn").Pool(jobs) as pool:
            ends = pool.starmap(_written, tasks, chunksize=1)
    else:
        ends = [_written(*task) for task in tasks]
    faults = [task[1] for task, end in zip(tasks, ends, strict=True) if end == "FAULT"]
    print(f"{len(names)} cases, {len(tasks)} of them run in {time.perf_counter() - start:.0f} s: "
          f"{ends.count('refused')} refused, {len(faults)} broken off by a fault", flush=True)  # fmt: skip
    return faults


def check_checkout(folder: Path) -> str:
    """What is imported that is not a checkout's; nothing if all is well."""
    for name in PACKAGES:
        path = Path(str(import_module(name).__file__)).resolve()
        if path != folder / name.rpartition(".")[2] / "__init__.py":
            return f"{name} is {path}, and not that of {folder}"
    return ""


def sources() -> str:
    """A digest of the files that are installed."""
    digest = hashlib.sha256()
    for name in PACKAGES:
        for folder, inside, files in os.walk(import_module(name).__path__[0], followlinks=True):
            inside[:] = sorted(filename for filename in inside if filename not in ("results", "__pycache__"))
            for path in (Path(folder) / filename for filename in sorted(files)):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _written(out: Path, name: str, about: dict[str, str]) -> str:
    """Runs a case, and says how it has ended."""
    folder, start, end, words = out / name, time.process_time(), "fitted", ""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with recorded() as rounds, patch.dict(os.environ, HIERFL_STATE=str(out / "state")):
        try:
            run(shlex.split(about["words"]), out, folder)
        except Exception as error:
            kind = type(error).__name__
            if kind == "Abort":  # what some versions of typer make of it
                raise KeyboardInterrupt from error
            end, words = "refused" if kind == "UserError" else "FAULT", f"{kind}: {error}".replace(str(out), "OUT")
            (folder / "error.txt").write_text(words)
    np.savez_compressed(folder / "rounds.npz", **rounds)  # type: ignore[arg-type]
    (folder / "case.json").write_text(json.dumps(about, indent=1))
    print(f"{name}: {end}, {time.process_time() - start:.2f} s {words}".rstrip(), flush=True)
    return end


def run(words: list[str], out: Path, folder: Path) -> None:
    """A run by the command line, a study whose sites answer in bytes, or a fit by a call; without figures, which take
    most of the time.

    Args:
        words: ``run ...``, ``federate study ...`` or ``fit FORMULA ...``; table.csv and sample.csv are in ``out``.
        out, folder: of all cases, and of this one.
    """
    from hierfl.plots import saving

    words = [str(out / word) if word in ("table.csv", "sample.csv") else word for word in words]
    with patch.object(saving, "save_all", lambda *given, **more: []), redirect_stdout(StringIO()):
        if words[0] == "run":
            _command(*words, "--quiet", "--out", str(folder / "run"))
            return
        df = pd.read_csv(out / "table.csv", dtype={"site": str})
        if words[0] == "fit":
            fit(words[1:], df, folder)
        else:
            _study(words, df, folder)


def _study(words: list[str], df: pd.DataFrame, folder: Path) -> None:
    from support.studies import FileStudy, write_tables

    study, files = folder / "study.toml", write_tables(df, folder / "data")
    _command(*words, *(word for name in files for word in ("--site", name)), "--out", str(study))
    settings = tomllib.loads(study.read_text())
    if "patient" in settings["columns"]:  # names that stay at the sites
        settings["columns"]["patient"] = {"kind": "name"}
    for column in (entry for entry in settings["columns"].values() if entry["kind"] in ("number", "whole")):
        column |= {"least": -1000, "most": 1000}  # nothing is taken for the sign of a missing value
    settings["privacy"]["least_rows"] = 1
    study.write_text(tomli_w.dumps(settings))
    FileStudy(study, files, folder).serve()
    shutil.rmtree(folder / "exchange")  # files are called by their digests; what is in them is recorded


def _command(*words: str) -> None:
    from hierfl.experiments import cli

    if code := cli.app(list(words), standalone_mode=False):
        raise KeyboardInterrupt if code == 130 else RuntimeError(f"exit code {code}")


@contextmanager
def recorded() -> Iterator[dict[str, np.ndarray]]:
    """What the server receives, each client's in its place, and the shared values after each round.

    By ROUND/sent/GROUP/KEY, and ROUND/shared/NAME.
    """
    from hierfl.inference.server.receiver import Receiver
    from hierfl.inference.server.server import Server

    kept: dict[str, np.ndarray] = {}
    add, call, number = Receiver.add, Server.__call__, 1

    def adding(receiver: Any, messages: Any, clients: Any, *given: Any, **more: Any) -> Any:
        for name, value in [(f"{g}/{k}", v.numpy()) for g, message in messages.items() for k, v in message.items()]:
            everyone = np.zeros((receiver.clients, *value.shape[1:]), value.dtype)
            kept.setdefault(f"{number:03d}/sent/{name}", everyone)[list(clients)] = value
        return add(receiver, messages, clients, *given, **more)

    def calling(server: Any, *given: Any, **more: Any) -> Any:
        nonlocal number
        state = call(server, *given, **more)
        kept.update({f"{number:03d}/shared/{name}": value.numpy().copy() for name, value in state.shared.items()})
        number += 1
        return state

    with patch.object(Receiver, "add", adding), patch.object(Server, "__call__", calling):
        yield kept
