"""Pictures of several methods side by side: gains of one over others, curves, settings, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics.paired import by_size
from .style import COLOURS, GLOBAL, INK, NAMED, PERSONAL, QUIET, _axis, _percent, _save, _sizes, _styled

if TYPE_CHECKING:
    import pandas as pd


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
    ax, order = _axis(ax), hierarchical["n"].sort_values(ascending=False, kind="stable").index
    rows = np.arange(len(order))
    values = [frame.loc[order, metric].to_numpy(float) for frame in (local, pooled, hierarchical)]
    ax.hlines(rows, np.min(values, 0), np.max(values, 0), color=QUIET, lw=0.8)
    ax.scatter(
        values[0], rows, s=20, facecolor="white", edgecolor=PERSONAL, linewidth=1, zorder=3, label="client alone"
    )
    ax.scatter(values[1], rows, s=18, color=GLOBAL, marker="s", zorder=3, label="one for all")
    ax.scatter(values[2], rows, s=18, color=PERSONAL, zorder=4, label=name)
    few = len(order) <= NAMED
    names = [f"{c} ({n})" for c, n in zip(order, hierarchical.loc[order, "n"], strict=True)] if few else []
    ax.set_yticks(rows if few else [], names, fontsize=6 if len(order) > 15 else 8)
    ax.set(ylim=(len(order) - 0.5, -0.5), xlabel=f"test {label}", ylabel="" if few else "clients, the largest on top")
    ax.set_title("Alone, one for all, and in between?")
    _percent(ax, metric, "x")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=3, fontsize=8)
    return ax


def compared(frame: pd.DataFrame, metrics: Mapping[str, str], path: Path, title: str) -> Path:
    """Methods side by side, a panel for each metric, a point for each seed, their mean as a line; written to ``path``.

    Args:
        frame: columns method, seed and the metrics.
        metrics: label of each.
        path: of the png.
        title: above all.
    """
    names = list(dict.fromkeys(frame["method"]))
    with _styled() as plt:
        figure, axes = plt.subplots(1, len(metrics), figsize=(4.6 * len(metrics), 0.9 + 0.45 * len(names)), sharey=True,
                                    layout="constrained", squeeze=False)  # fmt: skip
        for ax, (metric, label) in zip(axes[0], metrics.items(), strict=True):
            for place, name in enumerate(names):
                values = frame.loc[frame["method"] == name, metric]
                ax.scatter(values, [place] * len(values), s=18, color=PERSONAL, alpha=0.5, edgecolor="none")
                ax.plot([values.mean()] * 2, [place - 0.3, place + 0.3], color=INK, lw=1.6)
            ax.set_yticks(range(len(names)), names)
            ax.set(xlabel=label, xlim=(0, None))
            ax.grid(visible=False, axis="y")
        axes[0, 0].invert_yaxis()
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
        return _save(plt, figure, path)


def curves(lines: Sequence[tuple[str, Sequence[int], Sequence[float]]], label: str, title: str, path: Path) -> Path:
    """A share over the rounds of several methods: a thin line for every run, a thick one for a method's mean.

    Args:
        lines: (method, rounds, values) of every run.
        label: of the values.
        title: above all.
        path: of the png.
    """
    from matplotlib.ticker import MaxNLocator

    methods = list(dict.fromkeys(name for name, _, _ in lines))
    with _styled() as plt:
        figure, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
        for k, method in enumerate(methods):
            mine, colour = [(x, y) for name, x, y in lines if name == method], COLOURS[k % len(COLOURS)]
            for x, y in mine if len(mine) > 1 else ():
                ax.plot(x, y, color=colour, lw=0.6, alpha=0.45)
            shared = sorted(set.intersection(*(set(x) for x, _ in mine)))
            means = [np.mean([y[list(x).index(r)] for x, y in mine]) for r in shared]
            ax.plot(shared, means, color=colour, lw=1.8, marker="o" if len(shared) < 4 else None, label=method)
        ax.set(xlabel="round", ylabel=label, title=title)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        _percent(ax, "accuracy")
        ax.legend(loc="lower right")
        return _save(plt, figure, path)


def gain_intervals(table: pd.DataFrame, label: str, ax: Any = None) -> Any:
    """Gains of one metric over others, each with its interval, and zero: rows of a comparison's table."""
    ax = _axis(ax)
    kinds = {"mean": "at the mean", "draws": "over draws"}
    names = list(dict.fromkeys(table["over"]))
    shown = [kind for kind in kinds if kind in set(table["kind"])]
    for k, kind in enumerate(shown):
        part = table[table["kind"] == kind].set_index("over")
        at = [names.index(name) + 0.22 * (k - (len(shown) - 1) / 2) for name in part.index]
        errors = np.stack([part["gain"] - part["low"], part["high"] - part["gain"]]).clip(0)
        ax.errorbar(part["gain"], at, xerr=errors, fmt="o", ms=4, capsize=2, color=COLOURS[k], label=kinds[kind])
    ax.axvline(0, color=QUIET, lw=1, ls="--")
    ax.set_yticks(range(len(names)), [f"over {name}" for name in names])
    ax.set(xlabel=f"gain: {label.partition(',')[0]}", ylim=(len(names) - 0.5, -0.5), title="Gain, 95 % interval")
    ax.grid(visible=False, axis="y")
    if label.endswith("pp"):
        from matplotlib.ticker import PercentFormatter

        ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    ax.locator_params(axis="x", nbins=4)
    ax.tick_params(axis="x", labelsize=8)  # (labels as wide as -0.0025 would touch)
    if len(shown) > 1:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2, fontsize=8)
    return ax


def gain_by_size(gains: pd.DataFrame, metric: str, label: str, ax: Any = None) -> Any:
    """Each client's gain against its number of training examples, and the mean of the clients of about that size."""
    ax = _axis(ax)
    part = gains[["n", metric]].dropna()
    ax.scatter(part["n"], part[metric], s=20, color=PERSONAL, alpha=0.5, edgecolor="none")
    ax.axhline(0, color=QUIET, lw=1, ls="--")
    if part["n"].max() > part["n"].min():
        means = part.groupby(by_size(part["n"].to_numpy(float), max(1, min(6, len(part) // 4)))).mean()
        ax.plot(means["n"], means[metric], color=INK, lw=1.6, marker="o", ms=3, label="mean at this size")
        ax.legend(loc="best", fontsize=8)
    ax.set(ylabel=label, title="Who gains")
    _sizes(ax, part["n"])
    _percent(ax, metric)
    return ax


def sensitivity(frame: pd.DataFrame, key: str, metrics: Mapping[str, str], path: Path, title: str) -> Path:
    """Metrics against a setting, a panel for each metric, a line for each group with bars of one standard error.

    Args:
        frame: columns group, the key (NaN where it says nothing: a level line) and the metrics, by choice with a column
            ``METRIC_se`` of standard errors.
        key: the setting, a number.
        metrics: {column: label}.
        path: of the png.
        title: above all.
    """
    groups = list(dict.fromkeys(frame["group"]))
    with _styled() as plt:
        figure, axes = plt.subplots(
            1, len(metrics), figsize=(4.4 * len(metrics), 3.4), layout="constrained", squeeze=False
        )
        for ax, (metric, label) in zip(axes[0], metrics.items(), strict=True):
            for k, group in enumerate(groups):
                mine, colour = frame[frame["group"] == group].sort_values(key), COLOURS[k % len(COLOURS)]
                if mine[key].isna().all():
                    ax.axhline(mine[metric].iloc[0], color=colour, lw=1.2, ls="--", label=group)
                    continue
                errors = mine.get(f"{metric}_se")
                ax.errorbar(
                    mine[key], mine[metric], None if errors is None else errors,
                    color=colour, marker="o", ms=4, lw=1.4, capsize=2, label=group,
                )  # fmt: skip
            values = frame[key].dropna()
            if len(values) and values.min() > 0 and values.max() >= 10 * values.min():
                ax.set_xscale("log")
            ax.set(xlabel=key, ylabel=label)
            _percent(ax, metric.removeprefix("pm_").removeprefix("gm_"))
        if len(groups) > 1:
            axes[0, -1].legend(loc="best")
        figure.suptitle(title, fontsize=10)
        return _save(plt, figure, path)


def cost_curves(frame: pd.DataFrame, path: Path) -> Path:
    """Personal test accuracy against seconds in rounds, a panel for each split, a line for each method and seed.

    Args:
        frame: columns method, split, seed, seconds, pm_accuracy.
        path: of the png.
    """
    splits, methods = (list(dict.fromkeys(frame[column])) for column in ("split", "method"))
    lines = -(-len(splits) // 2)
    with _styled() as plt:
        figure, axes = plt.subplots(
            lines, min(2, len(splits)), figsize=(4.4 * min(2, len(splits)), 3.1 * lines), layout="constrained",
            squeeze=False,
        )  # fmt: skip
        for ax, split in zip(axes.flat, splits, strict=False):
            here = frame[frame["split"] == split]
            for (method, _), run in here.groupby(["method", "seed"], sort=False):
                colour = COLOURS[methods.index(method) % len(COLOURS)]
                ax.plot(run["seconds"], run["pm_accuracy"], color=colour, lw=1.6, marker="o", ms=4, label=method)
            handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
            ax.legend(handles.values(), handles.keys(), loc="lower right")
            ax.set(xlabel="seconds in rounds", ylabel="personal test accuracy", title=split)
            _percent(ax, "accuracy")
        for ax in axes.flat[len(splits) :]:
            ax.set_axis_off()
        return _save(plt, figure, path)
