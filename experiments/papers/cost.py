"""Accuracy against what it cost, for several run folders.

    hierfl cost RUN RUN ... --out results/cost

One csv with every evaluation (seconds in rounds, evaluations left out), and one picture; runs of one method that differ
in their split get a panel each.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hierfl.errors import UserError
from hierfl.plots.comparison import cost_curves

from ..run_folder.config_file import read_config
from ..run_folder.csv_files import read_frame, write_frame
from ..run_folder.files import write_text
from ..run_folder.summary import read_summary


def bytes_per_message(folder: Path) -> float:
    """What a message had, the mean over rounds and clients that reported (rejected messages among them)."""
    sent = read_frame(folder / "metrics.csv", ("split",))["bytes"].max()
    reports = read_frame(folder / "participation.csv").drop(columns="round").isin([1, 2, 4]).to_numpy().sum()
    return float(sent) / max(1, int(reports))


def rows(folder: Path) -> list[dict[str, Any]]:
    """Every evaluation on test data of a finished run; None is a number that it lacks.

    Raises:
        UserError: if the folder holds none, or the run is no classification.
    """
    config, summary = read_config(folder).run, read_summary(folder)
    if not (folder / "metrics.csv").is_file():
        raise UserError(f"{folder} is not the folder of a finished run: it has no metrics.csv")
    with open(folder / "metrics.csv") as file:
        test_rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    facts = {"method": summary["method"], "data": summary["data"], "split": config.split, "seed": config.seed}
    names = ("pm_accuracy", "pm_nll", "pm_ece", "pm_draws_accuracy", "gm_accuracy")
    if not any(row.get("pm_accuracy") for row in test_rows):
        raise UserError(f"{folder} has no accuracy on test data, and cost is accuracy against seconds and bytes")
    return [
        {**facts, "round": int(row["round"]), "seconds": float(row["seconds"]),
         **{name: float(row[name]) if row.get(name) else None for name in names}, "bytes": int(row.get("bytes") or 0)}
        for row in test_rows
    ]  # fmt: skip


def write_cost(runs: Sequence[Path], out: Path) -> str:
    """Writes cost.csv, cost.png and configs.json of several runs; their last evaluations as text.

    Raises:
        UserError: for a folder that is no finished run.
    """
    evaluations = [rows(folder) for folder in runs]
    frame = pd.DataFrame([row for of_run in evaluations for row in of_run])
    out.mkdir(parents=True, exist_ok=True)
    write_frame(out / "cost.csv", frame)
    configs = {folder.name: read_config(folder).as_tables() for folder in runs}
    for config in configs.values():
        del config["run"]["data_root"]  # where data lie differs from machine to machine
    write_text(out / "configs.json", json.dumps(configs, indent=1) + "\n")
    cost_curves(frame, out / "cost.png")
    last = pd.DataFrame([of_run[-1] for of_run in evaluations], index=[folder.name for folder in runs])
    return str(last.to_string(float_format="{:.4g}".format, na_rep="-"))
