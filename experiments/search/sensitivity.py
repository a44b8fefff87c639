"""Metrics against one setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hierfl.inference.method.settings import applicable, make_settings

from ..methods import load
from .cells import LABELS


def numeric_settings(method: str) -> list[str]:
    """Settings of a method that are numbers."""
    default = make_settings(load(method).cls, {})
    return [name for name, value in dataclasses.asdict(default).items() if not isinstance(value, str | bool)]


def draw_sensitivity(method: str, cells: Sequence[dict[str, Any]], key: str, title: str, path: Path) -> Path:
    """Personal models' metrics against a setting, a line for all cells that differ in nothing else."""
    import pandas as pd

    from hierfl.plots.comparison import sensitivity

    cls, rows, settings = load(method).cls, [], []
    for cell in cells:
        whole = dataclasses.asdict(make_settings(cls, applicable(cls, cell["all_settings"])))
        settings.append(applicable(cls, whole))
        rows.append({**whole, **cell})
    varied = [k for k in rows[0]["all_settings"] if k != key and len({row[k] for row in rows}) > 1]
    for row, shown in zip(rows, settings, strict=True):
        row["group"] = ", ".join(f"{k}={row[k]}" for k in varied if k in shown)
        row[key] = float(row[key]) if key in shown else float("nan")
    metrics = {k: label for k, label in LABELS.items() if any(row.get(k) is not None for row in rows)}
    return sensitivity(pd.DataFrame(rows), key, metrics, path, title)
