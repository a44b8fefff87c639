"""Gathers runs into a table: one row per method and prior, mean and standard error over seeds.

    python -m hierfl.experiments.collect --out digits.json runs/*/

Writes the json, and prints the table as markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.method.settings import applicable, make_settings

from .folder import read_config, read_summary, write_text
from .launch import launch
from .methods import known_class

COLUMNS = ("pm_accuracy", "gm_accuracy", "pm_nll", "pm_ece", "pm_draws_nll", "pm_draws_ece", "gm_nll", "gm_ece")

#: what may differ between runs of one setting: the seed, and where and by what words it was run
PRIVATE = (
    "seed", "redraws", "data_root", "method_digest", "device", "chunk", "settings_chosen", "observed_data",
    "federation",
)  # fmt: skip


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was, whoever ran it where: its configuration without what is its own.

    A setting that is newer than the run had its default, and what changes nothing beside the others is left out.
    """
    told = {k: v for k, v in config["run"].items() if k not in PRIVATE}
    cls = known_class(config["run"])
    if cls is None:  # (somebody's own file, which is not run for this: as the configuration has them)
        return {"run": told, "settings": dict(config["settings"])}
    settings = make_settings(cls, applicable(cls, config["settings"]))
    return {"run": told, "settings": {k: getattr(settings, k) for k in settings.__dataclass_fields__}}


def gather(runs: list[Path]) -> list[dict[str, Any]]:
    """One record per (method, prior) from finished runs of one setting on several seeds.

    Raises:
        UserError: for a folder that is no finished run, or runs of one method that differ in more than the seed.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        config = read_config(run)
        summary = read_summary(run)
        prior = config["settings"].get("prior")
        name = summary["method"] + (f" ({prior} prior)" if prior else "")
        chosen = config["run"].get("settings_chosen", "")
        member = {"summary": summary, "setting": setting_of(config), "chosen": chosen}
        groups.setdefault(name, []).append({**member, "digest": config["run"]["method_digest"]})
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
        for column in (*COLUMNS, "seconds_per_round"):
            values = [m["summary"][column] for m in members]
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
            scale, digits = (100, 1) if column.endswith("accuracy") else (1, 3)
            shown = "" if value is None else f"{scale * value:.{digits}f}"
            cells.append(shown + ("" if error is None else f" ± {scale * error:.{digits}f}"))
        lines.append(f"| {record['method']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m hierfl.experiments.collect", description="Gather runs into a table."
    )
    parser.add_argument("runs", nargs="+", type=user_path)
    parser.add_argument("--out", type=user_path, required=True)
    said = parser.parse_args(arguments)
    records = gather(said.runs)
    said.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(said.out, json.dumps(records, indent=1) + "\n")
    print(markdown(records))


if __name__ == "__main__":
    launch(main)
