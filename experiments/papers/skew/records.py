"""What the runs of the table found: accuracy by domain and seed, differences between rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...grid import Cell, finished_cells
from ...run_folder.csv_files import read_frame
from ..means import mean_and_error
from .variants import CLAIMS

#: of summary.json, means over clients
NUMBERS = (
    "pm_nll", "pm_ece", "pm_draws_accuracy", "pm_draws_nll", "pm_draws_ece", "diverged_local_steps",
    "seconds_per_round",
)  # fmt: skip


def records(out: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A record for each variant whose runs have finished: accuracy by domain and seed, and means of other numbers.

    Raises:
        UserError: for runs of other data, rounds and the like than the first.
    """
    found: dict[str, dict[str, Any]] = {}
    for cell, folder, summary, setting in finished_cells(out, cells):
        clients = read_frame(folder / "clients.csv", ("client",))
        record = found.setdefault(cell.row, {"variant": cell.row, "seeds": [], "accuracy": {}, "numbers": {}})
        record["seeds"].append(cell.seed)
        # (numbered where several share one)
        domain = clients["client"].str.replace(r"-\d+$", "", regex=True)
        for name, accuracy in clients["accuracy"].groupby(domain, sort=False).mean().items():
            record["accuracy"].setdefault(str(name), []).append(float(accuracy))
        for name in NUMBERS:
            record["numbers"].setdefault(name, []).append(summary[name])
        record["setting"] = {**setting["run"], **setting["settings"]}
    return list(found.values())


def differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each claim's difference in accuracy, paired by seed, mean over domains and in each of them."""
    found, by_name = [], {row["variant"]: row for row in rows}
    for first, second in CLAIMS:
        if first not in by_name or second not in by_name:
            continue
        one, two = by_name[first], by_name[second]
        both = [s for s in one["seeds"] if s in two["seeds"]]
        if not both:
            continue
        at = [(one["seeds"].index(s), two["seeds"].index(s)) for s in both]
        by_domain = {d: [a[i] - two["accuracy"][d][k] for i, k in at] for d, a in one["accuracy"].items()}
        means = np.mean(list(by_domain.values()), axis=0)
        draws = [averaged(one)[i] - averaged(two)[k] for i, k in at]
        found.append({"better": first, "worse": second, "seeds": both, "mean": mean_and_error(means),
            "domains": {d: mean_and_error(v) for d, v in by_domain.items()},
            "draws": mean_and_error(draws)})  # fmt: skip
    return found


def averaged(row: dict[str, Any]) -> list[float]:
    """A variant's mean accuracy by seed with averaged draws, or without where it has none."""
    draws = row["numbers"]["pm_draws_accuracy"]
    return list(np.mean(list(row["accuracy"].values()), axis=0)) if None in draws else draws
