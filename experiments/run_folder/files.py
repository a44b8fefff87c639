"""Small files of a run: texts, metrics, effects, versions."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hierfl.files import write_whole

from .csv_files import read_frame, write_rows


def write_text(path: Path, text: str) -> None:
    """Replaces a file whole, or not at all."""
    write_whole(path, text.encode())


def write_metrics(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """metrics.csv: one row per evaluation and split. A value that does not apply is empty."""
    if not rows:
        write_text(folder / "metrics.csv", "")
        return
    # (a run that goes on may know more of its later rounds than it did of its first)
    write_rows(folder / "metrics.csv", list(dict.fromkeys(name for row in rows for name in row)), rows)


#: columns of :func:`read_effects`
EFFECT_COLUMNS = ("effect", "estimate", "standard error")


def read_effects(folder: Path) -> list[list[str]]:
    """effects.csv as it is shown: name, estimate, and its standard error or why there is none."""
    frame = read_frame(folder / "effects.csv", ("effect", "note"), ("effect", "estimate", "standard_error", "note"))
    rows = []
    for row in frame.itertuples():
        known = row.standard_error == row.standard_error
        rows.append([row.effect, f"{row.estimate:.4g}", f"{row.standard_error:.3g}" if known else row.note])
    return rows


def versions() -> dict[str, str]:
    """Of what a result may depend on."""
    packages = ("hierfl", "torch", "pyro-ppl", "numpy", "arviz", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
