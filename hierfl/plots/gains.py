"""Who gains by one method over others."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics.paired import by_size
from .legible import legend_below, name_rows
from .registry import figure
from .style import (
    COLOURS,
    GLOBAL,
    INK,
    MAX_NAMED_CLIENTS,
    PERSONAL,
    QUIET,
    axis_for,
    client_points,
    label_percent,
    percent_axis,
    size_axis,
)  # fmt: skip

if TYPE_CHECKING:
    import pandas as pd

#: letters of a line beside an axis: a longer name is broken
WIDEST = 36


@figure(
    "three", "Gains",
    "Each client's test metric in one seed, for its own model alone, for one model for all, and for the first method.",
    page="comparison", position=2,
)  # fmt: skip
def three_ways(
    hierarchical: pd.DataFrame, local: pd.DataFrame, pooled: pd.DataFrame, metric: str, label: str,
    name: str = "hierarchical", ax: Any = None,
) -> Any:  # fmt: skip
    """A test metric of each client's model, beside what it reaches alone and what one model for all does; the axis.

    Args:
        hierarchical, local, pooled: a row for each client (its name the index), columns n and the metric.
        metric: which.
        label: its name.
        name: of the first.
        ax: where to draw.
    """
    ax, order = axis_for(ax), hierarchical["n"].sort_values(ascending=False, kind="stable").index
    every = len(order)
    order = order[np.unique(np.linspace(0, every - 1, min(every, MAX_NAMED_CLIENTS)).round().astype(int))]
    rows = np.arange(len(order))
    values = [frame.loc[order, metric].to_numpy(float) for frame in (local, pooled, hierarchical)]
    ax.hlines(rows, np.min(values, 0), np.max(values, 0), color=QUIET, lw=0.8)
    ax.scatter(
        values[0], rows, s=20, facecolor="white", edgecolor=PERSONAL, linewidth=1, zorder=3, label="client alone"
    )
    ax.scatter(values[1], rows, s=18, color=GLOBAL, marker="s", zorder=3, label="one for all")
    ax.scatter(values[2], rows, s=18, color=PERSONAL, zorder=4, label=name)
    name_rows(ax, list(order), [f" ({n})" for n in hierarchical.loc[order, "n"]])
    some = f"\n{len(order)} of {every:,} clients, from the largest to the smallest" * (len(order) < every)
    ax.set(xlabel=f"test {label}{some}", title="Alone, one for all, and in between?")
    percent_axis(ax, metric, "x")
    legend_below(ax)
    return ax


@figure(
    "gain", "Gains",
    "Gains of the first over each other, mean over clients. They are positive if the first is better.",
    page="comparison", position=1,
)  # fmt: skip
def gain_intervals(table: pd.DataFrame, label: str, ax: Any = None) -> Any:
    """Gains of one metric over others, each with its interval, and zero: rows of a comparison's table."""
    ax = axis_for(ax)
    kinds = {"mean": "at the mean", "draws": "over draws"}
    names = list(dict.fromkeys(table["over"]))
    shown = [kind for kind in kinds if kind in set(table["kind"])]
    for k, kind in enumerate(shown):
        part = table[table["kind"] == kind].set_index("over")
        at = [names.index(name) + 0.22 * (k - (len(shown) - 1) / 2) for name in part.index]
        errors = np.stack([part["gain"] - part["low"], part["high"] - part["gain"]]).clip(0)
        ax.errorbar(part["gain"], at, xerr=errors, fmt="o", ms=4, capsize=2, color=COLOURS[k], label=kinds[kind])
    ax.axvline(0, color=QUIET, lw=1, ls="--")
    name_rows(ax, [fill(f"over {name}", WIDEST) for name in names], most=10**6)
    ax.set(xlabel=f"gain: {label.partition(',')[0]}", title="Gain, 95 % interval")
    if label.endswith("pp"):
        label_percent(ax.xaxis, 1)
    ax.locator_params(axis="x", nbins=4)
    ax.tick_params(axis="x", labelsize=8)  # labels as wide as -0.0025 would touch
    if len(shown) > 1:
        legend_below(ax)
    return ax


@figure("size", "Who gains", "A point for each client and seed.", page="comparison", position=1)
def gain_by_size(
    gains: pd.DataFrame, metric: str, label: str, ax: Any = None, limits: tuple[float, float] | None = None
) -> Any:
    """Each client's gain against its number of training examples, and the mean of the clients of about that size.

    Args:
        gains: columns n and the metric.
        metric: which.
        label: of the gain.
        ax: where to draw.
        limits: of the gains, where several figures are to have one scale.
    """
    ax = axis_for(ax)
    part = gains[["n", metric]].dropna()
    client_points(ax, part["n"], part[metric], 20, 0.5)
    ax.axhline(0, color=QUIET, lw=1, ls="--")
    if part["n"].max() > part["n"].min():
        means = part.groupby(by_size(part["n"].to_numpy(float), max(1, min(6, len(part) // 4)))).mean()
        ax.plot(means["n"], means[metric], color=INK, lw=1.6, marker="o", ms=3, label="mean at this size")
    ax.set(ylabel=fill(label, WIDEST), title="Who gains")
    if limits is not None:
        ax.set_ylim(*limits)
    size_axis(ax, part["n"])
    percent_axis(ax, metric)
    legend_below(ax)
    return ax
