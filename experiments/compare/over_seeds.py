"""Runs as one table: a row for each method and prior, mean and standard error over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import UserError
from hierfl.metrics.registry import in_percent

from ..run_folder.config_file import read_config
from ..run_folder.identity import setting_of
from ..run_folder.summary import read_summary

COLUMNS = ("pm_accuracy", "gm_accuracy", "pm_nll", "pm_ece", "pm_draws_nll", "pm_draws_ece", "gm_nll", "gm_ece")


def summarise_over_seeds(runs: list[Path]) -> list[dict[str, Any]]:
    """One record per (method, prior) from finished runs of one setting on several seeds.

    Raises:
        UserError: for a folder that is no finished run, or runs of one method that differ in more than the seed.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        config = read_config(run)
        summary = read_summary(run)
        prior = config.settings.get("prior")
        name = summary["method"] + (f" ({prior} prior)" if prior else "")
        chosen = config.run.settings_chosen or ""
        member = {"summary": summary, "setting": setting_of(config), "chosen": chosen}
        groups.setdefault(name, []).append({**member, "digest": config.run.method_digest})
    records = []
    for name, members in groups.items():
        if any(m["setting"] != members[0]["setting"] for m in members):
            raise UserError(f"the runs of {name} differ in more than their seed")
        seeds = sorted(m["summary"]["seed"] for m in members)
        if len(set(seeds)) < len(seeds):
            raise UserError(f"{name} has the same seed twice")
        record: dict[str, Any] = {"method": name, "seeds": seeds, "setting": members[0]["setting"]}
        record["settings_chosen"] = members[0]["chosen"]
        record["method_digests"] = sorted({m["digest"] for m in members})
        for column in (*COLUMNS, "pm_accuracy_pooled", "seconds_per_round"):
            values = [m["summary"].get(column) for m in members]
            if all(v is not None for v in values):
                record[column] = float(np.mean(values))
                record[f"{column}_se"] = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
        record["versions"] = members[0]["summary"]["versions"]
        records.append(record)
    return records


def markdown(records: list[dict[str, Any]]) -> str:
    """The table: accuracies in percent, everything else as it is, with standard errors."""
    lines = [f"| method | {' | '.join(COLUMNS)} |", "|---|" + "---:|" * len(COLUMNS)]
    for record in records:
        cells = []
        for column in COLUMNS:
            value, error = record.get(column), record.get(f"{column}_se")
            scale, digits = (100, 1) if in_percent(column) else (1, 3)
            shown = "" if value is None else f"{scale * value:.{digits}f}"
            cells.append(shown + ("" if error is None else f" ± {scale * error:.{digits}f}"))
        lines.append(f"| {record['method']} | {' | '.join(cells)} |")
    return "\n".join(lines)
