"""A comparison's folder: tables, pictures, page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.metrics.registry import METRICS

from ..compare.comparison import Comparison
from ..compare.display import markdown
from ..compare.variants import short_names
from ..run_folder.csv_files import write_frame
from ..run_folder.files import versions, write_text
from ..run_folder.layout import make_numbered_folder
from .comparison_page import path_from, write_comparison_page

FILES = ("report.html", "comparison.md", "gains.csv", "table.csv", "sizes.csv", "loo.csv")


def comparison_folder(out: Path | None) -> Path:
    """A fresh folder: ``out``, emptied of an old comparison, or the next numbered one in ./runs."""
    if out is None:
        return make_numbered_folder("compare")
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).unlink(missing_ok=True)  # but for what it is known by
    shutil.rmtree(out / "figures", ignore_errors=True)
    return out


def three_way_figures(compared: Comparison) -> dict[str, Callable[[Any], Any]]:
    """The first beside what each client alone and one model for all reach, where both are among the others.

    Methods local and fedavg; {metric: a picture, function of an axis} of the first seed that all three have.
    """
    from hierfl.plots.gains import three_ways

    by_method = {v.setting["run"]["method"]: v for v in reversed(compared.variants)}
    first, three = compared.variants[0], [by_method.get("local"), by_method.get("fedavg")]
    if None in three or first in three:
        return {}
    alone, pooled = three
    assert alone is not None
    assert pooled is not None
    seeds = sorted(set(first.runs) & set(alone.runs) & set(pooled.runs))
    if not seeds:
        return {}
    ours, own, pooled_rows = (
        v.clients[v.clients["seed"] == seeds[0]].set_index("client") for v in (first, alone, pooled)
    )
    metrics = [m for m in ("accuracy", "nll", "rmse") if m in ours and m in own and m in pooled_rows]
    return {m: partial(three_ways, ours, own, pooled_rows, m, METRICS[m].label, first.name) for m in metrics}


def _limits(gains: np.ndarray) -> tuple[float, float] | None:
    """One scale for the gains over each of the others; None where all are alike."""
    good = gains[np.isfinite(gains)]
    room = 0.05 * float(np.ptp(good)) if len(good) else 0.0
    return (float(good.min()) - room, float(good.max()) + room) if room else None


def write_comparison(compared: Comparison, folder: Path) -> list[Path]:
    """Tables and pictures of a comparison into a folder; the pictures' paths."""
    from hierfl.plots.clients import column_by_size, confidence_by_deviation
    from hierfl.plots.gains import gain_by_size, gain_intervals
    from hierfl.plots.saving import save_all

    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "runs": {v.name: {str(s): path_from(folder, run) for s, run in v.runs.items()} for v in compared.variants},
        "settings": {v.name: v.setting for v in compared.variants},
        "table": compared.table.to_dict("records"),
        "versions": versions(),
    }
    # first what the folder is known by: killed after it, the comparison can be reported, or overwritten
    write_text(folder / "comparison.json", json.dumps(record, indent=1) + "\n")
    write_frame(folder / "gains.csv", compared.gains)
    write_frame(folder / "table.csv", compared.table)
    write_frame(folder / "sizes.csv", compared.sizes)
    if compared.loo is not None:
        write_frame(folder / "loo.csv", compared.loo)
    write_text(folder / "comparison.md", markdown(compared))
    first, drawn = compared.variants[0], dict[str, Callable[[Any], Any]]()
    metrics = list(dict.fromkeys(compared.table["metric"]))
    for metric in metrics:
        rows = compared.table[compared.table["metric"] == metric]
        drawn[f"gain-{metric}"] = partial(gain_intervals, rows, METRICS[metric].gain_label)
    last = compared.gains[compared.gains["kind"] == compared.gains["kind"].iloc[-1]]
    for number, over in enumerate(v.name for v in compared.variants[1:]):
        for metric in [m for m in ("accuracy", "rmse", "nll") if m in metrics]:
            label = f"gain in {METRICS[metric].label} over {short_names(compared.variants)[over]}"
            drawn[f"size-{number + 1}-{metric}"] = partial(
                gain_by_size, last[last["over"] == over], metric, label, limits=_limits(last[metric].to_numpy(float))
            )
    if {"tau", "deviation"} <= set(first.clients):
        pooled_rows = first.clients[first.clients["seed"] == first.clients["seed"].min()]
        drawn["confidence"] = partial(column_by_size, pooled_rows, "tau", "confidence $\\tau_j$")
        drawn["confidence-deviation"] = partial(confidence_by_deviation, pooled_rows)
    drawn |= {f"three-{metric}": draw for metric, draw in three_way_figures(compared).items()}
    pictures = save_all(folder / "figures", drawn, f"{first.name} against others", "overview")
    write_comparison_page(compared, folder)
    return pictures
