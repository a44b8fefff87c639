"""One runner for every grid of runs: cells with a run folder each, skipped, resumed, run, and collected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hierfl.errors import UserError
from hierfl.schema import read_json

from .run_folder.config_file import read_config
from .run_folder.identity import setting_of
from .run_folder.resume import resume
from .run_folder.start import start
from .run_folder.summary import read_summary


class Configured(Protocol):
    """A cell of some table: what there is to run, and its name in words."""

    def config(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Of its run."""
        ...


class Named(Configured, Protocol):
    """A cell whose run has a folder of its own."""

    @property
    def name(self) -> str:
        """Of the folder."""
        ...


def check_cell(cell: Configured, folder: Path, extra: dict[str, Any]) -> None:
    """Checks that a folder holds this cell's run.

    Raises:
        UserError: if it holds another one.
    """
    old, wanted = setting_of(read_config(folder)), setting_of(cell.config(extra))
    for part, values in wanted.items():
        # (how data were come by is known once they are loaded)
        other = [k for k in {**old[part], **values} if old[part].get(k) != values.get(k) and k != "data_origin"]
        if other:
            was, should = old[part].get(other[0]), values.get(other[0])
            raise UserError(
                f"{folder} was run with {other[0]} = {was!r}, but this table wants {should!r}; move it away, or take "
                "another --out"
            )


def run_cell(cell: Configured, folder: Path, extra: dict[str, Any], progress: bool) -> None:
    """Runs a cell, or goes on with it, or leaves it alone if it has finished.

    Raises:
        UserError: if the folder holds another run, or the run cannot be made.
    """
    if not (folder / "config.toml").is_file():
        start(cell.config(extra), folder, overwrite=folder.exists(), progress=progress)
        return
    check_cell(cell, folder, extra)
    if not (folder / "summary.json").is_file():
        resume(folder, progress, {k: extra[k] for k in ("data_root", "device") if k in extra})


C = TypeVar("C", bound=Named)


def finished(out: Path, cells: Iterable[C]) -> Iterator[tuple[C, Path, dict[str, Any], dict[str, Any]]]:
    """Those cells whose runs have finished, each with its folder, summary, and setting ("run" and "settings").

    Raises:
        UserError: for runs that differ from the first in more than method, settings and seed.
    """
    first: dict[str, Any] = {}
    for cell in cells:
        folder = out / cell.name
        if not (folder / "summary.json").is_file():
            continue
        setting = setting_of(read_config(folder))
        about = {k: v for k, v in setting["run"].items() if k != "method"}
        if other := [k for k in {**first, **about} if first and first.get(k) != about.get(k)]:
            raise UserError(f"the runs in {out} differ in {', '.join(other)}: {cell.name} has {about.get(other[0])!r}")
        first = about
        yield cell, folder, read_summary(folder), setting


def read_cells(path: Path, about: Mapping[str, Any], may_differ: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The cells of an experiment that a json holds, {**about, "cells": [{...}, ...]}; none where there is no file.

    Raises:
        UserError: if the file is damaged or no such json, or holds another experiment's.
    """
    if not path.exists():
        return []
    held = read_json(path)
    cells = held.pop("cells", None)
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UserError(f"{path} holds no cells of an experiment; choose another --out")
    wanted = json.loads(json.dumps(about))
    other = [k for k in {**wanted, **held} if k not in may_differ and wanted.get(k) != held.get(k)]
    if other:
        what = "; ".join(f"its {k} is {held.get(k)!r}, not {wanted.get(k)!r}" for k in other)
        raise UserError(f"{path} holds another experiment: {what}; choose another --out")
    return cells
