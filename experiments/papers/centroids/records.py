"""What the runs of the table found: numbers by seed, accuracy over rounds, differences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.method.settings import applicable
from hierfl.models import PFedVMP

from ...grid import Cell, finished_cells
from ...run_folder.csv_files import read_frame
from ..cost import bytes_per_message
from ..means import mean_and_error
from .variants import CLAIMS, STEPS, VARIANTS


def records(out: Path, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """A record for each variant whose runs have finished: numbers by seed, and accuracy over the rounds.

    Raises:
        UserError: for runs of other data, rounds, steps and the like than the first.
    """
    found: dict[str, dict[str, Any]] = {}
    first: dict[str, Any] = {}
    for cell, folder, summary, setting in finished_cells(out, cells):
        used = applicable(PFedVMP, setting["settings"])
        for name in (*STEPS, "distance"):  # (without centroids distance has no meaning)
            if name in used and first.setdefault(name, used[name]) != used[name]:
                raise UserError(f"the runs in {out} differ in {name}: {cell.name} has {used[name]}")
        metrics = read_frame(folder / "metrics.csv", ("split",))
        metrics = metrics[metrics["split"] == "test"]
        record = found.setdefault(cell.row, {"variant": cell.row, "seeds": [], "setting": {}, "runs": []})
        record["seeds"].append(cell.seed)
        record["setting"] = {**setting["run"], **setting["settings"]}
        record["runs"].append(
            {
                "pooled": summary["pm_accuracy_pooled"],
                "accuracy": summary["pm_accuracy"],
                "cv": summary["accuracy_cv"],
                "nll": summary["pm_nll"],
                "ece": summary["pm_ece"],
                "redraws": summary["redraws"],
                "failed": summary["diverged_local_steps"],
                "seconds_per_round": summary["seconds_per_round"],
                "bytes_per_message": bytes_per_message(folder),
                "rounds": metrics["round"].tolist(),
                "pooled_by_round": metrics["pm_accuracy_pooled"].tolist(),
            }
        )
    return [found[name] for name in VARIANTS if name in found]


def differences(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each claim, in accuracy (pooled, and mean over clients) and NLL, paired by seed: mean and standard error."""
    found, by_name = [], {row["variant"]: row for row in rows}
    for better, worse in CLAIMS:
        if better not in by_name or worse not in by_name:
            continue
        pair = by_name[better], by_name[worse]
        one, two = (dict(zip(row["seeds"], row["runs"], strict=True)) for row in pair)
        if seeds := sorted(one.keys() & two.keys()):
            gaps = {k: mean_and_error([one[s][k] - two[s][k] for s in seeds]) for k in ("pooled", "accuracy", "nll")}
            found.append({"better": better, "worse": worse, "seeds": seeds, **gaps})
    return found
