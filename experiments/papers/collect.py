"""What the finished runs of a table say: a row for each cell and model, ours beside published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from hierfl.errors import UserError
from hierfl.metrics.registry import in_percent

from ..compare.over_seeds import summarise_over_seeds
from ..grid import Cell, check_cell, is_finished
from ..run_folder.csv_files import read_frame
from ..run_folder.summary import read_summary
from .cells import why_not
from .cost import bytes_per_message
from .definition import EntryKey, Table
from .labels import shown_name
from .means import mean_and_error
from .published import numbers_of

#: the mean over the tenth of the clients with fewest training examples, and over one at least
SMALLEST = "pm_accuracy_smallest_tenth"


def checked(
    cells: Mapping[EntryKey, Sequence[Cell]], out: Path, extra: Mapping[str, Any]
) -> tuple[dict[EntryKey, dict[int, Path]], list[str]]:
    """Folders of the finished runs by cell and seed; and which runs are left out, since they are not this table's."""
    runs: dict[EntryKey, dict[int, Path]] = {entry: {} for entry in cells}
    strange = []
    for entry, cell in ((entry, cell) for entry, own in cells.items() for cell in own):
        mine = runs[entry]
        if is_finished(out / cell.name):
            try:
                check_cell(cell, out / cell.name, extra)
            except UserError as error:
                strange.append(f"{cell}: {error}")
            else:
                mine[cell.seed] = out / cell.name
    return runs, strange


def scale(metric: str) -> float:
    """100 for shares that are shown in percent."""
    plain = metric.removeprefix("pm_").removeprefix("gm_").removeprefix("draws_")
    return 100.0 if metric == SMALLEST or in_percent(metric) or plain in ("accuracy_cv", "accuracy_pooled") else 1.0


def values(folder: Path, metric: str, by: str) -> dict[str, float]:
    """A metric of a run: {"": value}, or for each domain of its clients."""
    if by == "domain":
        clients = read_frame(folder / "clients.csv", ("client",))
        column = metric.removeprefix("pm_")
        if column not in clients:
            return {}
        domain = clients["client"].str.replace(r"-\d+$", "", regex=True)
        return {str(k): float(v) for k, v in clients[column].groupby(domain, sort=False).mean().items()}
    if metric == SMALLEST:
        clients = read_frame(folder / "clients.csv", ("client",)).sort_values("n", kind="stable")
        return {"": float(clients["accuracy"].iloc[: max(1, len(clients) // 10)].mean())}
    value = read_summary(folder).get(metric)
    return {} if value is None else {"": float(value)}


def rows_of(table: Table, runs: Mapping[EntryKey, Mapping[int, Path]], root: Path) -> list[dict[str, Any]]:
    """A row for each cell (or each domain of it) and model: ours, published, their difference, or why there is none.

    Args:
        table: whose.
        runs: of :func:`checked`.
        root: where data sets lie, to say which do not.
    """
    theirs = numbers_of(table)
    rows: list[dict[str, Any]] = []
    for entry, by_seed in runs.items():
        common, before = _common(by_seed), len(rows)
        why = "" if by_seed else why_not(table, entry, root) or "not run"
        for model, metric in table.metrics.items():
            mine: dict[str, list[float]] = {}
            for folder in by_seed.values():
                for label, value in values(folder, metric, table.by).items():
                    mine.setdefault(label, []).append(scale(metric) * value)
            published = [p.data for p, m in theirs if m == model and replace(p, data=entry.data) == entry and table.by]
            published += [""] if (entry, model) in theirs and not table.by else []
            for label in dict.fromkeys([*mine, *published]):
                shown = replace(entry, data=label or entry.data)
                rows.append(row_of(table, shown, model, mine.get(label), theirs.get((shown, model)), common, why))
        if len(rows) == before:
            rows.append(row_of(table, entry, next(iter(table.metrics)), None, None, {}, why or "it has no such number"))
    return rows


def _common(by_seed: Mapping[int, Path]) -> dict[str, Any]:
    """What a cell's runs say beside its metric."""
    if not by_seed:
        return {}
    record = summarise_over_seeds(list(by_seed.values()))[0]
    kept: dict[str, Any] = {
        k: record[k] for k in ("seconds_per_round", "setting", "settings_chosen", "method_digests") if k in record
    }
    bytes_each = mean_and_error([bytes_per_message(folder) for folder in by_seed.values()])[0]
    scores = {k: v for k, v in record.items() if k.endswith(("_nll", "_ece"))}
    return {**kept, **scores, "rounds": record["setting"]["run"]["rounds"], "bytes_per_message": bytes_each}


def row_of(
    table: Table,
    entry: EntryKey,
    model: str,
    mine: Sequence[float] | None,
    number: Any,
    common: Mapping[str, Any],
    why: str,
) -> dict[str, Any]:
    """One row: of values by seed, or of why there are none."""
    row: dict[str, Any] = {"data": entry.data, "clients": entry.clients, "condition": entry.condition}
    row |= {"method": entry.method, "model": model}
    if table.paper:
        row |= {"published": number and number.value, "published_sem": number and number.sem}
    if mine is None:
        return {**row, "why": why or "it has no such number"}
    mean, error = mean_and_error(mine)
    row |= {"ours": mean, "ours_sem": error, "seeds": len(mine)}
    if number is not None:
        row["difference"] = mean - number.value
        if text := table.remark(entry, "explained"):
            row["explained"] = text
    prefix = model.lower()
    row |= {"nll": common.get(f"{prefix}_nll"), "ece": common.get(f"{prefix}_ece")}
    row |= {f"draws_{k}": common.get(f"{prefix}_draws_{k}") for k in ("nll", "ece")}
    row |= {k: v for k, v in common.items() if not k.endswith(("_nll", "_ece"))}
    return row


def curves_of(runs: Mapping[EntryKey, Mapping[int, Path]], column: str) -> dict[tuple[str, int, str], list[Any]]:
    """(method, rounds, values) of each run on test data, by data, clients and condition."""
    lines: dict[tuple[str, int, str], list[Any]] = {}
    for entry, by_seed in runs.items():
        for folder in by_seed.values():
            metrics: pd.DataFrame = read_frame(folder / "metrics.csv", ("split",))
            metrics = metrics[metrics["split"] == "test"]
            if column in metrics and metrics[column].notna().all():
                key = (entry.data, entry.clients, entry.condition)
                lines.setdefault(key, []).append(
                    (shown_name(entry.method), metrics["round"].tolist(), metrics[column].tolist())
                )
    return lines
