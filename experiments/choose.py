"""Chooses a method's settings on validation data: every cell of a grid, over seeds, kept in one json.

    python -m hierfl.experiments.choose pfedvem --data digits --seeds 3 --out pfedvem.json \\
        head_lr=1e-4,1e-3 sigma_0=0.1,0.3

A cell that the file already holds is not run again, so a search can be stopped and continued. Test data are never
looked at. The criterion is the personal models' validation NLL (RMSE for regression) at the last round, averaged over
clients and seeds: a proper score, and less coarse than accuracy on small validation sets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import UserError
from hierfl.inference import fit

from .folder import write_text
from .runner import OPTIONS, build, configure

SHOWN = ("pm_nll", "pm_accuracy", "pm_rmse", "gm_nll", "gm_accuracy")


def cell(method: str, data: str, given: dict[str, Any], settings: dict[str, str]) -> dict[str, float]:
    """Validation metrics of one setting with one seed, at the last round."""
    config = configure(method, data, given, settings)
    built, federation, _ = build(config)
    options = {k: config["run"][k] for k in OPTIONS} | {"evaluate_every": max(1, config["run"]["rounds"])}
    row = fit(built, federation, progress=False, **options).last("validation")
    if not row:
        raise UserError("there are no validation data to choose by; raise --validation")
    return {k: row[k] for k in SHOWN if row.get(k) is not None}


def search(
    method: str, data: str, seeds: int, grid: dict[str, list[str]], out: Path, given: dict[str, Any]
) -> list[dict[str, Any]]:
    """All cells of the grid, best first; ``out`` is written after each."""
    done: dict[str, Any] = {}
    if out.is_file():
        done = {json.dumps(c["settings"]): c for c in json.loads(out.read_text())["cells"]}
    criterion = "pm_nll"
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        name = json.dumps(settings)
        if name not in done:
            rows = [cell(method, data, {**given, "seed": seed}, settings) for seed in range(seeds)]
            means = {k: float(np.mean([row[k] for row in rows])) for k in rows[0]}
            errors = (
                {f"{k}_se": float(np.std([row[k] for row in rows], ddof=1) / seeds**0.5) for k in rows[0]}
                if seeds > 1
                else {}
            )
            done[name] = {"settings": settings, **means, **errors}
        criterion = "pm_rmse" if "pm_rmse" in done[name] else "pm_nll"
        cells = sorted(done.values(), key=lambda c: c[criterion] if np.isfinite(c[criterion]) else np.inf)
        about = {
            "method": method,
            "data": data,
            "seeds": seeds,
            "criterion": criterion,
            **given,
            "cells": cells,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(about, indent=1) + "\n")
        print(settings, {k: round(v, 4) for k, v in done[name].items() if k in SHOWN}, flush=True)
    return sorted(done.values(), key=lambda c: c[criterion] if np.isfinite(c[criterion]) else np.inf)


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
    parser.add_argument("--out", type=Path, required=True)
    said = parser.parse_args(arguments)
    grid = {key: values.split(",") for key, _, values in (pair.partition("=") for pair in said.grid)}
    given = {k: getattr(said, k) for k in ("data_root", "rounds") if getattr(said, k) is not None}
    best = search(said.method, said.data, said.seeds, grid, said.out, given)[0]
    print("best:", best)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
