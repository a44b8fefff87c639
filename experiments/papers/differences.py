"""Differences between methods, paired by seed, with Student's t intervals where there are enough seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.metrics.paired import student

from ..run_folder.summary import read_summary
from .collect import scale, values
from .definition import EntryKey, Table
from .means import mean_and_error

#: of the personal models, beside the table's own metrics: columns of summary.json, the first that a method has
SCORES = {
    "NLL": ("pm_nll",),
    "ECE": ("pm_ece",),
    "NLL of draws": ("pm_draws_nll", "pm_nll"),
    "ECE of draws": ("pm_draws_ece", "pm_ece"),
}
#: seeds below which a difference is not tested
TESTED = 5
Runs = Mapping[EntryKey, Mapping[int, Path]]


def differences(table: Table, runs: Runs) -> list[dict[str, Any]]:
    """Each claim in each condition: the table's metrics, NLL and ECE, of one method less the other's, paired by seed.

    Where one of the two methods averages its predictions over draws, NLL and ECE of draws are compared, too. A method
    without draws then has those of its only prediction.

    Returns:
        Data, clients, condition, better, worse, seeds; ``by``: {metric: mean, se, low, high} of the differences, the
        ends of a 95 % interval by Student's t where there are :data:`TESTED` seeds; ``mean``, mean and standard error
        of the first metric; ``domains``, the same of each domain.
    """
    gaps = []
    for data, clients, condition in dict.fromkeys((p.data, p.clients, p.condition) for p in runs):
        for first, second in table.claims:
            runs_of_first, two = (runs.get(EntryKey(data, clients, condition, name), {}) for name in (first, second))
            both = sorted(runs_of_first.keys() & two.keys())
            if both:
                gap = {"data": data, "clients": clients, "condition": condition, "better": first, "worse": second}
                gaps.append(
                    {**gap, "seeds": both, **_gap(table, [runs_of_first[s] for s in both], [two[s] for s in both])}
                )
    return gaps


def _gap(table: Table, runs_of_first: Sequence[Path], two: Sequence[Path]) -> dict[str, Any]:
    """Differences of runs in pairs, in all metrics that both have."""
    by: dict[str, Any] = {}
    domains: dict[str, tuple[float, float | None]] = {}
    for name, metric in table.metrics.items():
        pairs = [
            (values(a, metric, table.by), values(b, metric, table.by)) for a, b in zip(runs_of_first, two, strict=True)
        ]
        if not all(a and a.keys() == b.keys() for a, b in pairs):
            continue
        gaps = [{label: scale(metric) * (a[label] - b[label]) for label in a} for a, b in pairs]
        by[name] = paired([float(np.mean(list(gap.values()))) for gap in gaps])
        if table.by and not domains:
            domains = {label: mean_and_error([gap[label] for gap in gaps]) for label in gaps[0]}
    for name, columns in SCORES.items():
        (ours, column), (theirs, other_column) = (_score(side, columns) for side in (runs_of_first, two))
        if columns[0] in (column, other_column) and None not in ours + theirs:
            by[name] = paired(np.subtract(np.array(ours, float), np.array(theirs, float)).tolist())
    first = by.get(next(iter(table.metrics)), {})
    return {"mean": (first.get("mean"), first.get("se")), "domains": domains, "by": by}


def _score(folders: Sequence[Path], columns: Sequence[str]) -> tuple[list[float | None], str]:
    """The first of the columns that every run has, its value in each run and its name; of the last one, without any."""
    summaries = [read_summary(folder) for folder in folders]
    column = next((c for c in columns if all(s.get(c) is not None for s in summaries)), columns[-1])
    return [summary.get(column) for summary in summaries], column


def paired(gaps: Sequence[float]) -> dict[str, float | None]:
    """Mean, standard error, and the ends of a 95 % interval by Student's t; None below :data:`TESTED` seeds."""
    mean, error = mean_and_error(gaps)
    if error is None or len(gaps) < TESTED:
        return {"mean": mean, "se": error, "low": None, "high": None}
    half = student(len(gaps) - 1) * error
    return {"mean": mean, "se": error, "low": mean - half, "high": mean + half}


def in_words(gap: Mapping[str, float | None], digits: int) -> str:
    """A difference and its interval; without one its standard error, if there is one."""
    mean, low, high, error = (gap[k] for k in ("mean", "low", "high", "se"))
    assert mean is not None
    if low is None or high is None:
        spread = "" if error is None else f" ± {error:.{digits}f}"
        return f"{mean:+.{digits}f}{spread}"
    return f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
