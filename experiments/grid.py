"""One runner for every grid of runs: each cell has a run folder of its own, and what is there is not run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.file_lock import Busy, locked
from hierfl.files import make_folder
from hierfl.schema import read_json

from .config import Configuration
from .configure import configure
from .run_folder.config_file import read_config
from .run_folder.identity import setting_of
from .run_folder.resume import resume
from .run_folder.start import start
from .run_folder.summary import read_summary


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        name: of its folder.
        words: its description for readers.
        row: in which row of the grid's table it is.
        method, data, given, settings, seed: what is run.
    """

    name: str
    words: str
    row: str
    method: str
    data: str
    given: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int

    def __str__(self) -> str:
        return self.words

    def config(self, extra: Mapping[str, Any]) -> Configuration:
        """The configuration of its run, with run options that the grid leaves open."""
        return configure(self.method, self.data, {**self.given, **extra, "seed": self.seed}, self.settings)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run."""
    return (folder / "summary.json").is_file()


def check_cell(cell: Cell, folder: Path, extra: Mapping[str, Any]) -> None:
    """Checks that a folder holds this cell's run.

    Raises:
        UserError: if it holds another one.
    """
    # Where a finished run was watched is its own: that tracker need not be installed here.
    given, more = ({k: v for k, v in options.items() if k != "track"} for options in (cell.given, extra))
    old, wanted = setting_of(read_config(folder)), setting_of(replace(cell, given=given).config(more))
    for part, values in wanted.items():
        # How data were come by is known once they are loaded.
        other = [k for k in {**old[part], **values} if old[part].get(k) != values.get(k) and k != "data_origin"]
        if other:
            was, should = old[part].get(other[0]), values.get(other[0])
            raise UserError(
                f"{folder} was run with {other[0]} = {was!r}, but this table wants {should!r}; move it away, or take "
                "another --out"
            )


def run_cell(cell: Cell, folder: Path, extra: Mapping[str, Any], progress: bool) -> None:
    """Runs a cell, or goes on with it, or leaves it alone if it has finished.

    Raises:
        UserError: if the folder holds another run, or the run cannot be made.
    """
    if not (folder / "config.toml").is_file():
        start(cell.config(extra), folder, overwrite=folder.exists(), progress=progress)
        return
    check_cell(cell, folder, extra)
    if not is_finished(folder):
        resume(folder, progress, {k: extra[k] for k in ("data_root", "device") if k in extra})


def run_cells(
    cells: Sequence[Cell], out: Path, extra: Mapping[str, Any], *, say: Callable[[str], None], progress: bool = False,
    shared: bool = False, may_start: Callable[[Cell], bool] = lambda cell: True,
) -> list[str]:  # fmt: skip
    """Runs what is missing of a grid, into a folder of folders.

    Args:
        cells: in the order in which they are run.
        out: the folder.
        extra: run options that the grid leaves open.
        say: called with a line for each cell that is run.
        progress: whether the runs show theirs.
        shared: whether other processes may run the same grid: what one of them is at is left to it. A cell that cannot
            be run does not keep the others from it.
        may_start: whether a cell that has not finished may be begun now; it is left out otherwise.

    Returns:
        What could not be run, and why; where ``shared``.

    Raises:
        UserError: for the first cell that cannot be run, where not ``shared``.
    """
    problems = []
    if shared:
        make_folder(out)
    for number, cell in enumerate(cells, start=1):
        busy = f"{cell} is running in another process"
        try:
            with locked(out / f".{cell.name}.lock", busy) if shared else nullcontext():
                if not is_finished(out / cell.name):
                    if not may_start(cell):
                        continue
                    say(f"cell {number} of {len(cells)}: {cell}")
                run_cell(cell, out / cell.name, extra, progress)
        except UserError as error:
            if not shared:
                raise
            if isinstance(error, Busy):
                say(str(error))
            else:
                problems.append(f"{cell}: {error}")
                say(problems[-1])
    return problems


def finished_cells(
    out: Path, cells: Iterable[Cell]
) -> Iterator[tuple[Cell, Path, dict[str, Any], dict[str, dict[str, Any]]]]:
    """Those cells whose runs have finished, each with its folder, summary, and setting ("run" and "settings").

    Raises:
        UserError: for runs that differ from the first in more than method, settings and seed.
    """
    first: dict[str, Any] = {}
    for cell in cells:
        folder = out / cell.name
        if not is_finished(folder):
            continue
        setting = setting_of(read_config(folder))
        facts = {k: v for k, v in setting["run"].items() if k != "method"}
        if other := [k for k in {**first, **facts} if first and first.get(k) != facts.get(k)]:
            raise UserError(f"the runs in {out} differ in {', '.join(other)}: {cell.name} has {facts.get(other[0])!r}")
        first = facts
        yield cell, folder, read_summary(folder), setting


def read_cells(path: Path, facts: Mapping[str, Any], may_differ: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The cells of an experiment that a json holds, {**about, "cells": [{...}, ...]}; none where there is no file.

    Raises:
        UserError: if the file is damaged or no such json, or holds another experiment's.
    """
    if not path.exists():
        return []
    record = read_json(path)
    cells = record.pop("cells", None)
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"{path} holds no cells of an experiment; choose another --out")
    wanted = json.loads(json.dumps(facts))
    other = [k for k in {**wanted, **record} if k not in may_differ and wanted.get(k) != record.get(k)]
    if other:
        what = "; ".join(f"its {k} is {record.get(k)!r}, not {wanted.get(k)!r}" for k in other)
        raise UserError(f"{path} holds another experiment: {what}; choose another --out")
    return cells
