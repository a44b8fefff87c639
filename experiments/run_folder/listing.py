"""Runs of a folder, in the order in which they were begun."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierfl.data import tables
from hierfl.errors import UserError
from hierfl.files import PART_SUFFIX

from .config_file import read_config
from .summary import read_summary

#: the main score: the first of these that a summary has
SCORES = ("pm_accuracy", "pm_rmse", "log_likelihood")


@dataclass(frozen=True)
class Listed:
    """A run.

    Attributes:
        name: its folder below the one that is listed.
        method, data: of its configuration; empty where that cannot be read.
        rounds, done: how many were asked for, and how many have ended; None where that is not known.
        metric, score: its main score on test data, or None.
        state: "finished", "not finished", or what is wrong with it.
    """

    name: str
    method: str = ""
    data: str = ""
    rounds: int | None = None
    done: int | None = None
    metric: str | None = None
    score: float | None = None
    state: str = ""


def listed(folder: Path) -> list[Listed]:
    """The runs in a folder and in the folders below it, the newest last.

    Raises:
        UserError: where there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"no folder {folder}: hierfl run writes to ./runs, or to --out")
    configs = [path for path in folder.rglob("config.toml") if PART_SUFFIX not in str(path.parent.name)]
    return [_row(path.parent, folder) for path in sorted(configs, key=lambda path: (path.stat().st_mtime, str(path)))]


def _row(run: Path, root: Path) -> Listed:
    name = str(run.relative_to(root)) if run != root else run.name
    try:
        config = read_config(run).run
    except UserError as error:
        return Listed(name, state=f"cannot be read: {error}")
    method = Path(config.method).stem if config.method.endswith(".py") else config.method
    data = tables.stem(config.data) if tables.is_table(config.data) else Path(config.data).stem
    common: dict[str, Any] = {"method": method, "data": data, "rounds": config.rounds}
    if not (run / "summary.json").is_file():
        return Listed(name, **common, done=_rounds_done(run), state="not finished")
    try:
        summary = read_summary(run)
    except UserError as error:
        return Listed(name, **common, state=f"cannot be read: {error}")
    metric, score = next(((k, v) for k in SCORES if (v := summary.get(k)) is not None), (None, None))
    return Listed(name, **common, done=summary["rounds"], metric=metric, score=score, state="finished")


def _rounds_done(run: Path) -> int | None:
    """The rounds done of a run that has not finished, by its checkpoint."""
    try:
        record: Any = json.loads((run / "checkpoint" / "checkpoint.json").read_text())
        number = record["round"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0 if not (run / "checkpoint").exists() else None
    return number if isinstance(number, int) else None
