"""Every finished run of a table, a line each: what is committed of runs whose folders are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..run_folder.config_file import read_config
from ..run_folder.csv_files import write_rows
from ..run_folder.summary import read_summary
from .definition import EntryKey

SCORES = ("accuracy", "nll", "ece")
COLUMNS = (
    "data", "clients", "condition", "method", "seed", "rounds", "split", *(f"pm_{k}" for k in SCORES),
    *(f"pm_draws_{k}" for k in SCORES), *(f"gm_{k}" for k in SCORES), "pm_accuracy_pooled", "accuracy_cv",
    "worst10_accuracy", "seconds_per_round",
)  # fmt: skip


def lines(runs: Mapping[EntryKey, Mapping[int, Path]]) -> list[dict[str, Any]]:
    """A row for each finished run, by cell and seed."""
    rows = []
    for entry, by_seed in runs.items():
        for seed, folder in sorted(by_seed.items()):
            summary, run = read_summary(folder), read_config(folder).run
            scores = {k: summary[k] for k in COLUMNS if k in summary}
            # A row of the table may be another method with settings: its own name tells them apart.
            facts = {"clients": entry.clients or summary.get("clients"), "rounds": run.rounds, "split": run.split}
            rows.append({**scores, **vars(entry), "seed": seed, **facts})
    return [{k: row.get(k) for k in COLUMNS} for row in rows]


def write_runs(rows: list[dict[str, Any]], out: Path) -> None:
    """runs.csv in a table's folder."""
    write_rows(out / "runs.csv", COLUMNS, rows)
