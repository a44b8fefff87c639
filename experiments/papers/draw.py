"""Figures of a table's runs: the papers' pictures."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from hierfl.data.datasets import registry
from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.metrics.registry import metric_of_column
from hierfl.plots.clients import metric_by_size
from hierfl.plots.comparison import curves
from hierfl.plots.densities import densities, spread_out
from hierfl.plots.legible import legend_below, short_names
from hierfl.plots.saving import save
from hierfl.plots.share_bubbles import share_bubbles
from hierfl.plots.style import line_of, styled

from ..report.draw import draw_features
from ..run_folder.config_file import read_config
from ..run_folder.csv_files import read_frame
from .cells import slug, table_cell, why_not
from .collect import curves_of, scale, values
from .definition import EntryKey, Table
from .labels import shown_name

Runs = Mapping[EntryKey, Mapping[int, Path]]
#: letters of conditions that fit beside each other below an axis
MAX_LETTERS_BESIDE = 45
#: of a figure's kind
KINDS = ("curves", "densities", "sizes", "conditions", "of-runs", "bubbles")


def draw(table: Table, runs: Runs, places: Sequence[EntryKey], out: Path, root: Path) -> list[Path]:
    """Draws a table's figure of what has finished, into its folder.

    Args:
        table: whose figure; nothing is drawn without one.
        runs: finished runs by cell and seed.
        places: cells that were asked for.
        out: the folder.
        root: where data sets lie.

    Returns:
        The pictures.

    Raises:
        UserError: for a kind that there is not.
    """
    kind = table.figure.get("kind", "")
    if not kind:
        return []
    if kind not in KINDS:
        raise UserError(f"{table.name}: figure.kind is one of {', '.join(KINDS)}; not {kind!r}")
    if kind == "bubbles":
        return _bubbles(table, places, out, root)
    if kind == "curves":
        return _curves(table, runs, out)
    if kind == "conditions":
        return _conditions(table, runs, out)
    made = []
    for entry, by_seed in runs.items():
        for seed, folder in by_seed.items():
            label = f"{slug(entry.data)}-{entry.clients}-{slug(entry.condition)}-{slug(entry.method)}-{seed}"
            made += _of_run(table, kind, folder, label.replace("--", "-"), out, root)
    return made


def _curves(table: Table, runs: Runs, out: Path) -> list[Path]:
    metric = next(iter(table.metrics.values()))
    made = []
    for (data, clients, condition), lines in curves_of(runs, metric).items():
        title = ", ".join(filter(None, (shown_name(data), f"{clients} clients" if clients else "", condition)))
        name = f"curves-{slug(data)}-{clients}-{slug(condition)}".rstrip("-")
        made.append(curves(lines, f"test {_label(metric)}", title, out / f"{name}.png"))
    return made


def _conditions(table: Table, runs: Runs, out: Path) -> list[Path]:
    """A metric against the conditions, in the table's order: a line for each method, a point for each seed."""
    metric, made = next(iter(table.metrics.values())), []
    names = list(dict.fromkeys(condition.name for condition in table.conditions))
    for data, clients in dict.fromkeys((p.data, p.clients) for p, by_seed in runs.items() if by_seed):
        with styled() as plt:
            figure, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
            for k, method in enumerate(table.methods):
                points = [
                    (names.index(p.condition), scale(metric) * value)
                    for p, by_seed in runs.items()
                    if (p.data, p.clients, p.method) == (data, clients, method)
                    for folder in by_seed.values()
                    for value in values(folder, metric, "").values()
                ]
                if points:
                    frame = pd.DataFrame(points, columns=["place", "value"]).groupby("place")["value"].mean()
                    how, label = line_of(k), short_names([shown_name(method)])[0]
                    ax.plot(frame.index, frame, marker="o", lw=1.6, label=label, **how)
                    ax.scatter(*zip(*points, strict=True), s=12, color=how["color"], alpha=0.4)
            labels = short_names(names)
            ax.set_xticks(range(len(names)), labels)
            if len(" ".join(labels)) > MAX_LETTERS_BESIDE:  # they would run into each other
                for tick in ax.get_xticklabels():
                    tick.set(rotation=30, ha="right", rotation_mode="anchor")
            unit = ", %" if scale(metric) != 1 else ""
            ax.set(ylabel=f"test {_label(metric)}{unit}", title=f"{shown_name(data)}, {clients} clients")
            legend_below(ax)
            made.append(save(plt, figure, out / f"conditions-{slug(data)}-{clients}.png"))
    return made


def _label(column: str) -> str:
    """The label of a metric's column, such as pm_accuracy."""
    metric = metric_of_column(column)
    return column.replace("_", " ") if metric is None else metric.label


def _of_run(table: Table, kind: str, folder: Path, label: str, out: Path, root: Path) -> list[Path]:
    """Pictures of one run."""
    if kind == "of-runs":
        made = []
        for name in table.figure.get("names", ()):
            if name == "features" and not (folder / "figures" / "features.png").is_file():
                # A run itself does not draw them: they take the network, the data and their time.
                draw_features(folder, read_config(folder), {"data_root": str(root)}, progress=False, trust_code=False)
            for picture in sorted((folder / "figures").glob(f"{name}*.png")):
                out.mkdir(parents=True, exist_ok=True)
                made.append(Path(shutil.copyfile(picture, out / f"{label}-{picture.name}")))
        return made
    if kind == "sizes":
        clients = read_frame(folder / "clients.csv", ("client",))
        with styled() as plt:
            figure, ax = plt.subplots(figsize=(5.0, 3.4), layout="constrained")
            metric_by_size(clients, ax)
            return [save(plt, figure, out / f"{label}-sizes.png")]
    history, column = _history(folder), str(table.figure.get("column", "tau"))
    if history is None or column not in history:
        return []
    if not any(spread_out(part[column].to_numpy(float)) for _, part in history.groupby("round")):
        return []
    with styled() as plt:
        figure, ax = plt.subplots(figsize=(5.0, 3.4), layout="constrained")
        densities(history, column, ax)
        return [save(plt, figure, out / f"{label}-{column}.png")]


def _history(folder: Path) -> Any:
    path = folder / "history.csv"
    return read_frame(path, ("client",)) if path.is_file() else None


def _bubbles(table: Table, places: Sequence[EntryKey], out: Path, root: Path) -> list[Path]:
    """Draws the split alone: how many examples of each class the clients have."""
    made = []
    for entry in places:
        if why_not(table, entry, root):
            continue
        run = table_cell(table, entry, 0).config({"data_root": str(root)}).run
        pool = registry.load(run.data, root)
        federation = Federation.from_pool(pool, run.clients, run.split, validation=run.validation_fraction, seed=0)
        with styled() as plt:
            figure, ax = plt.subplots(figsize=(8.0, 3.4), layout="constrained")
            share_bubbles(federation.by_class.counts, ax)
            ax.set_title(f"{shown_name(entry.data)}, {entry.condition or run.split}")
            made.append(save(plt, figure, out / f"bubbles-{slug(entry.data)}-{slug(entry.condition or run.split)}.png"))
    return made
