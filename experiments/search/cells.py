"""`hierfl search`: a method's settings on validation data, every cell of a grid, over seeds, kept in one json.

    hierfl search pfedvem head_lr=1e-4,1e-3 sigma_0=0.1,0.3 --data digits --seeds 3 --out pfedvem.json

A cell that the file already holds is not run again, so a search can be stopped and continued. Test data are never
looked at. The criterion is the personal models' validation NLL (RMSE for regression), averaged over clients and seeds:
a proper score, and less coarse than accuracy on small validation sets; or, with ``--by``, the mean of other metrics of
the same direction, as in ``--by pm_accuracy,gm_accuracy``. All numbers are means over the last ``--settle``
evaluations: where few clients report, one round's global model is a matter of which ones did.

``--against KEY`` draws the metrics against one number of the settings, into OUT.png.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import UserError
from hierfl.files import check_writable
from hierfl.inference.method.settings import applicable, make_settings
from hierfl.metrics.registry import metric_of_column

from ..build import build, options_of
from ..configure import configure
from ..grid import read_cells
from ..methods import load
from ..run_folder.files import write_text

LABELS = {
    "pm_nll": "validation NLL",
    "pm_draws_nll": "validation NLL of averaged draws",
    "pm_accuracy": "validation accuracy",
    "pm_rmse": "validation RMSE",
}
#: clients' rounds that diverged and were undone, of all seeds: the metrics are of what was left
FAILED = "diverged_local_steps"
SHOWN_METRICS = ("pm_nll", "pm_draws_nll", "pm_accuracy", "pm_rmse", "gm_nll", "gm_accuracy")


def evaluate_cell(
    method: str, data: str, given: dict[str, Any], settings: dict[str, str], settle: int, progress: bool = False
) -> dict[str, float]:
    """Validation metrics of one setting with one seed, means over the last evaluations; how many steps diverged."""
    config = configure(method, data, given, settings)
    if settle == 1:
        config = config.with_run(evaluate_every=max(1, config.run.rounds))
    ready, _ = build(config)
    if not any(map(len, ready.federation.validation)):
        raise UserError(
            "there are no validation data to choose by: --validation-of clients takes rows of every client, and a "
            "larger --validation-fraction more of them"
        )
    ready.options = dataclasses.replace(ready.options, splits=("validation",))
    rows = ready.run(progress=progress).evaluations[-settle:]
    metrics = {k: float(np.mean([row[k] for row in rows])) for k in SHOWN_METRICS if rows[-1].get(k) is not None}
    return {**metrics, FAILED: rows[-1]["diverged"]}


def search(
    method: str,
    data: str,
    seeds: int,
    grid: dict[str, list[str]],
    out: Path,
    given: dict[str, Any],
    settle: int = 1,
    by: Sequence[str] = (),
    say: Callable[[str], None] = print,
    cells: Sequence[dict[str, str]] | None = None,
    lenient: bool = False,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """All cells that ``out`` holds, those of the grid among them, best first; it is written after each.

    Args:
        method, data, seeds, given: what is fitted to what, how often.
        grid: values by setting.
        out: the json.
        settle: evaluations that are averaged.
        by: metrics that cells are judged by.
        say: called with a line for each cell.
        cells: only these of the grid.
        lenient: judges by those metrics that the method has.
        progress: a bar for each run.

    Raises:
        UserError: for a setting that cannot be (before anything is run), if ``out`` holds another search, or nothing
            can be chosen by.
    """
    kept = {k: str(v) if isinstance(v, Path) else v for k, v in given.items() if k not in ("data_root", "device")}
    facts = {"method": method, "data": data, "seeds": seeds, **kept, **({"settle": settle} if settle > 1 else {})}
    for what, number in (("seeds", seeds), ("settle", settle)):
        if number < 1:
            raise UserError(f"{what} must be at least 1, not {number}")
    if out.is_dir():
        raise UserError(f"{out} is a folder; --out is the file of the search")
    cells_so_far = read_cells(out, facts, may_differ=("by",))  # the same cells may be judged again
    for cell in cells_so_far:  # files of earlier versions have what was searched as text
        cell["settings"] = {
            name: cell.get("all_settings", {}).get(name, value) for name, value in cell["settings"].items()
        }
    cls = load(method).cls
    # A setting that is newer than the file had its default.
    done = [make_settings(cls, applicable(cls, c["all_settings"])) for c in cells_so_far if "all_settings" in c]
    # The whole grid is read before anything is run: pairs of a setting and all settings that follow from it.
    wanted = []
    every = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    for settings in every if cells is None else cells:
        config = configure(method, data, given, settings)
        options = options_of(config)
        num_evaluations = sum(options.evaluates(number) for number in range(1, options.rounds + 1))
        if settle > max(1, num_evaluations):
            raise UserError(f"there are only {num_evaluations} evaluations; --settle asks for {settle}")
        wanted.append((settings, config.settings))
    check_writable(out)
    for settings, whole in wanted:
        if make_settings(cls, whole) not in done:
            rows = [
                evaluate_cell(method, data, {**given, "seed": seed}, settings, settle, progress)
                for seed in range(seeds)
            ]
            searched = {name: whole[name] for name in settings}
            cells_so_far.append({"settings": searched, "all_settings": whole, **_means(rows)})
            done.append(make_settings(cls, whole))
            say(in_words(cells_so_far[-1]))
            _write(out, facts, by, cells_so_far, lenient)
    return _write(out, facts, by, cells_so_far, lenient)


def in_words(cell: Mapping[str, Any]) -> str:
    """A cell's settings and metrics, in one line."""
    metrics = {k: v for k, v in cell.items() if k in SHOWN_METRICS or (k == FAILED and v)}
    return ", ".join([*(f"{k}={v}" for k, v in cell["settings"].items()), *map(_named_number, metrics.items())])


def _named_number(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"


def _write(
    out: Path, facts: dict[str, Any], by: Sequence[str], cells: list[dict[str, Any]], lenient: bool = False
) -> list[dict[str, Any]]:
    """Sorts the cells, best first, and keeps them."""
    if lenient:
        by = [name for name in by if any(name in cell for cell in cells)]
    missing = [name for name in by if all(name not in cell for cell in cells)]
    judged = {"by": list(by)} if by and not missing else {}
    cells = sorted(cells, key=lambda cell: criterion(cell, [] if missing else by))
    write_text(out, json.dumps({**facts, **judged, "cells": cells}, indent=1, allow_nan=False) + "\n")
    if missing:  # what has been run is kept
        raise UserError(f"{facts['method']} has no {missing[0]} to be judged by")
    return cells


def criterion(cell: Mapping[str, Any], by: Sequence[str] = ()) -> float:
    """What is to be small; a cell that diverged, or lacks what it is judged by, comes last."""
    values = [cell.get(name) for name in by] or [cell.get("pm_nll", cell.get("pm_rmse"))]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return float("inf")
    mean = sum(numbers) / len(numbers)
    return -mean if by and better(by[0]) == "higher" else mean


def better(column: str) -> str | None:
    """Which way the metric of a column is better; None for what is no metric."""
    metric = metric_of_column(column)
    return None if metric is None else metric.better


def _means(rows: list[dict[str, float]]) -> dict[str, float | None]:
    """Means over seeds and their standard errors; null where something was not finite."""
    numbers: dict[str, float | None] = {}
    for name in (k for k in rows[0] if k != FAILED):
        values = np.array([row[name] for row in rows])
        finite = bool(np.isfinite(values).all())
        numbers[name] = float(values.mean()) if finite else None
        if len(rows) > 1:
            numbers[f"{name}_se"] = float(values.std(ddof=1) / len(rows) ** 0.5) if finite else None
    return {**numbers, FAILED: sum(row[FAILED] for row in rows)}


def parse_metrics(words: str) -> list[str]:
    """Metrics that cells are judged by.

    Raises:
        UserError: for those that are none, or of two directions.
    """
    by = words.split(",") if words else []
    if not set(by) <= set(SHOWN_METRICS) or len(set(map(better, by))) > 1:
        raise UserError(f"--by takes metrics of one direction out of {', '.join(SHOWN_METRICS)}; not {words!r}")
    return by
