"""Chooses a method's settings on validation data: every cell of a grid, over seeds, kept in one json.

    python -m hierfl.experiments.choose pfedvem --data digits --seeds 3 --out pfedvem.json \\
        head_lr=1e-4,1e-3 sigma_0=0.1,0.3

A cell that the file already holds is not run again, so a search can be stopped and continued. Test data are never
looked at. The criterion is the personal models' validation NLL (RMSE for regression), averaged over clients and seeds:
a proper score, and less coarse than accuracy on small validation sets; or, with ``--by``, the mean of other metrics of
the same direction, as in ``--by pm_accuracy,gm_accuracy``. All numbers are means over the last ``--settle``
evaluations: where few clients report, one round's global model is a matter of which ones did.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import UserError

from .folder import write_text
from .launch import launch
from .runner import build, configure

SHOWN = ("pm_nll", "pm_accuracy", "pm_rmse", "gm_nll", "gm_accuracy")


def cell(method: str, data: str, given: dict[str, Any], settings: dict[str, str], settle: int) -> dict[str, float]:
    """Validation metrics of one setting with one seed: means over the last evaluations."""
    config = configure(method, data, given, settings)
    if settle == 1:
        config["run"]["evaluate_every"] = max(1, config["run"]["rounds"])
    ready, _ = build(config)
    ready.options = dataclasses.replace(ready.options, splits=("validation",))
    rows = ready.run(progress=False).rows[-settle:]
    if len(rows) < settle:
        wanted = "there are no validation data to choose by" if not rows else f"there are only {len(rows)} evaluations"
        raise UserError(f"{wanted}; --settle asks for {settle}")
    return {k: float(np.mean([row[k] for row in rows])) for k in SHOWN if rows[-1].get(k) is not None}


def search(
    method: str,
    data: str,
    seeds: int,
    grid: dict[str, list[str]],
    out: Path,
    given: dict[str, Any],
    settle: int = 1,
    by: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """All cells of the grid, best first; ``out`` is written after each.

    Raises:
        UserError: if ``out`` holds another search, or nothing can be chosen by.
    """
    told = {k: v for k, v in given.items() if k != "data_root"}
    about = {"method": method, "data": data, "seeds": seeds, **told, **({"settle": settle} if settle > 1 else {})}
    for what, number in (("seeds", seeds), ("settle", settle)):
        if number < 1:
            raise UserError(f"{what} must be at least 1, not {number}")
    cells: list[dict[str, Any]] = []
    if out.is_file():
        old = json.loads(out.read_text())
        cells = old.pop("cells")
        old.pop("by", None)  # the same cells may be judged anew
        if old != about:
            raise UserError(f"{out} holds another search: {old}")
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        whole = configure(method, data, given, settings)["settings"]  # those that the grid does not name may change
        if all(c.get("all_settings") != whole for c in cells):
            rows = [cell(method, data, {**given, "seed": seed}, settings, settle) for seed in range(seeds)]
            cells.append({"settings": settings, "all_settings": whole, **_means(rows)})
            print(settings, {k: v for k, v in cells[-1].items() if k in SHOWN}, flush=True)
            _write(out, about, by, cells)
    return _write(out, about, by, cells)


def _write(out: Path, about: dict[str, Any], by: Sequence[str], cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorts the cells, best first, and keeps them."""
    for name in by:
        if all(name not in cell for cell in cells):
            raise UserError(f"{about['method']} has no {name} to be judged by")
    cells = sorted(cells, key=lambda cell: _criterion(cell, by))
    out.parent.mkdir(parents=True, exist_ok=True)
    judged = {"by": list(by)} if by else {}
    write_text(out, json.dumps({**about, **judged, "cells": cells}, indent=1, allow_nan=False) + "\n")
    return cells


def _criterion(cell: dict[str, Any], by: Sequence[str]) -> float:
    """What is to be small; a cell that diverged, or lacks what it is judged by, comes last."""
    values = [cell.get(name) for name in by] or [cell.get("pm_nll", cell.get("pm_rmse"))]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return float("inf")
    mean = sum(numbers) / len(numbers)
    return -mean if by and by[0].endswith("accuracy") else mean


def _means(rows: list[dict[str, float]]) -> dict[str, float | None]:
    """Means over seeds and their standard errors; null where something was not finite."""
    numbers: dict[str, float | None] = {}
    for name in rows[0]:
        values = np.array([row[name] for row in rows])
        finite = bool(np.isfinite(values).all())
        numbers[name] = float(values.mean()) if finite else None
        if len(rows) > 1:
            numbers[f"{name}_se"] = float(values.std(ddof=1) / len(rows) ** 0.5) if finite else None
    return numbers


def main(arguments: list[str]) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m hierfl.experiments.choose", description="Choose settings on validation data."
    )
    parser.add_argument("method")
    parser.add_argument("grid", nargs="+", metavar="KEY=V,V,...")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--settle", type=int, default=1, help="average over so many last evaluations")
    parser.add_argument("--by", metavar="METRIC,...", help="judge by the mean of these")
    parser.add_argument("--out", type=Path, required=True)
    said = parser.parse_args(arguments)
    by = said.by.split(",") if said.by else []
    directions = {name.endswith("accuracy") for name in by}
    if not set(by) <= set(SHOWN) or len(directions) > 1:
        raise UserError(f"--by takes metrics of one direction out of {', '.join(SHOWN)}; not {said.by!r}")
    grid = {key: values.split(",") for key, _, values in (pair.partition("=") for pair in said.grid)}
    given = {k: getattr(said, k) for k in ("data_root", "rounds") if getattr(said, k) is not None}
    best = search(said.method, said.data, said.seeds, grid, said.out, given, said.settle, by)[0]
    print("best:", best)


if __name__ == "__main__":
    launch(main)
