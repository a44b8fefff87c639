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
    # A run that goes on may know more of its later rounds than it did of its first.
    write_rows(folder / "metrics.csv", list(dict.fromkeys(name for row in rows for name in row)), rows)


#: notes of effects, where there is little room
SHORT_NOTES = {
    "at its lower bound": "at bound", "at its bound": "at bound", "not identified": "none",
    "at its lower bound, covariates at their means": "at bound",
    "no finite estimate: separated": "separated",
}  # fmt: skip


def read_effects(folder: Path) -> tuple[tuple[str, ...], list[list[str]]]:
    """effects.csv as it is shown: name, estimate, its standard error or why there is none, interval and test.

    Returns:
        The columns' names, and the rows.
    """
    from hierfl.models.mixed_effects.report.printed import NORMAL_DF, statistic_name
    from hierfl.models.mixed_effects.report.summary import p_value

    needs = ("effect", "estimate", "standard_error", "lower", "upper", "statistic", "df", "p", "note")
    frame = read_frame(folder / "effects.csv", ("effect", "note"), needs, whole=True)
    rows = []
    for row in frame.itertuples():
        interval = [f"{bound:.4g}" if bound == bound else "" for bound in (row.lower, row.upper)]
        estimate = f"{row.estimate:.4g}" if row.estimate == row.estimate else ""
        tested = row.statistic == row.statistic
        rows.append([
            row.effect, estimate, SHORT_NOTES.get(row.note, row.note) or f"{row.standard_error:.3g}", *interval,
            f"{row.statistic:.2f}" if tested else "", f"{row.df:.1f}" if tested and row.df < NORMAL_DF else "",
            p_value(row.p) if tested else "",
        ])  # fmt: skip
    statistic = statistic_name(frame["df"][frame["statistic"].notna()])
    return ("effect", "estimate", "SE", "2.5 %", "97.5 %", statistic, "df", "p"), rows


#: columns of :func:`read_globals`
GLOBAL_COLUMNS = ("global", "mean", "sd", "5 %", "95 %")


def read_globals(folder: Path) -> list[list[str]]:
    """globals.csv as it is shown, with :data:`GLOBAL_COLUMNS`."""
    frame = read_frame(folder / "globals.csv", ("name",), ("name", *GLOBAL_COLUMNS[1:]))
    return [
        [str(name), *(f"{value:.4g}" for value in numbers)]
        for name, *numbers in frame[["name", *GLOBAL_COLUMNS[1:]]].itertuples(index=False)
    ]


def versions() -> dict[str, str]:
    """The versions of what a result may depend on."""
    packages = ("hierfl", "torch", "pyro-ppl", "numpy", "arviz", "scikit-learn")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
