"""Methods side by side: metrics, curves, settings, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from .legible import LEFT_INCHES, LETTER, TITLE_LETTERS, legend_below, legend_of_panels, new_figure, short_names
from .saving import save
from .style import INK, PERSONAL, line_of, percent_axis, styled

if TYPE_CHECKING:
    import pandas as pd


def compared(frame: pd.DataFrame, metrics: Mapping[str, str], path: Path, title: str) -> Path:
    """Methods side by side, a panel for each metric, a point for each seed, their mean as a line; written to ``path``.

    Args:
        frame: columns method, seed and the metrics.
        metrics: label of each.
        path: of the png.
        title: above all.
    """
    names = list(dict.fromkeys(frame["method"]))
    with styled() as plt:
        beside = max(0.0, LETTER * max(map(len, short_names(names))) - LEFT_INCHES)
        size = (4.2 * len(metrics) + beside, 0.9 + 0.45 * len(names))
        figure, axes = plt.subplots(1, len(metrics), figsize=size, sharey=True, layout="constrained", squeeze=False)
        for ax, (metric, label) in zip(axes[0], metrics.items(), strict=True):
            for row, name in enumerate(names):
                values = frame.loc[frame["method"] == name, metric]
                ax.scatter(values, [row] * len(values), s=18, color=PERSONAL, alpha=0.5, edgecolor="none")
                ax.plot([values.mean()] * 2, [row - 0.3, row + 0.3], color=INK, lw=1.6)
            ax.set_yticks(range(len(names)), short_names(names), fontsize=8)
            ax.set(xlabel=label, xlim=(0, None))
            ax.grid(visible=False, axis="y")
        axes[0, 0].invert_yaxis()
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
        return save(plt, figure, path)


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
    with styled() as plt:
        figure, ax = new_figure(plt)
        for k, method in enumerate(methods):
            mine, how = [(x, y) for name, x, y in lines if name == method], line_of(k)
            for x, y in mine if len(mine) > 1 else ():
                ax.plot(x, y, lw=0.6, alpha=0.45, **how)
            shared = sorted(set.intersection(*(set(x) for x, _ in mine)))
            means = [np.mean([y[list(x).index(r)] for x, y in mine]) for r in shared]
            label_of_line = short_names(methods)[k]
            ax.plot(shared, means, lw=1.8, marker="o" if len(shared) < 4 else None, label=label_of_line, **how)
        ax.set(xlabel="round", ylabel=label, title=fill(title, TITLE_LETTERS))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        percent_axis(ax, "accuracy")
        legend_below(ax)
        return save(plt, figure, path)


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
    names = short_names(groups)
    with styled() as plt:
        figure, axes = plt.subplots(
            1, len(metrics), figsize=(4.4 * len(metrics), 3.4), layout="constrained", squeeze=False
        )
        for ax, (metric, label) in zip(axes[0], metrics.items(), strict=True):
            for k, group in enumerate(groups):
                mine, how = frame[frame["group"] == group].sort_values(key), line_of(k)
                if mine[key].isna().all():
                    ax.axhline(mine[metric].iloc[0], color=how["color"], lw=1.2, ls="--", label=names[k])
                    continue
                errors = mine.get(f"{metric}_se")
                ax.errorbar(
                    mine[key], mine[metric], None if errors is None else errors,
                    marker="o", ms=4, lw=1.4, capsize=2, label=names[k], **how,
                )  # fmt: skip
            values = frame[key].dropna()
            if len(values) and values.min() > 0 and values.max() >= 10 * values.min():
                ax.set_xscale("log")
            ax.set(xlabel=key, ylabel=label)
            percent_axis(ax, metric.removeprefix("pm_").removeprefix("gm_"))
        if len(groups) > 1:
            legend_of_panels(figure, *axes[0, -1].get_legend_handles_labels())
        figure.suptitle(fill(title, TITLE_LETTERS * len(metrics)), fontsize=10)
        return save(plt, figure, path)


def cost_curves(frame: pd.DataFrame, path: Path) -> Path:
    """Personal test accuracy against seconds in rounds, a panel for each split, a line for each method and seed.

    Args:
        frame: columns method, split, seed, seconds, pm_accuracy.
        path: of the png.
    """
    splits, methods = (list(dict.fromkeys(frame[column])) for column in ("split", "method"))
    lines, names = -(-len(splits) // 2), short_names(methods)
    with styled() as plt:
        figure, axes = plt.subplots(
            lines, min(2, len(splits)), figsize=(4.4 * min(2, len(splits)), 3.1 * lines), layout="constrained",
            squeeze=False, sharex="row", sharey=True,
        )  # fmt: skip
        handles: dict[str, Any] = {}
        for ax, split in zip(axes.flat, splits, strict=False):
            of_split = frame[frame["split"] == split]
            for (method, _), run in of_split.groupby(["method", "seed"], sort=False):
                k = methods.index(method)
                ax.plot(run["seconds"], run["pm_accuracy"], lw=1.6, marker="o", ms=4, label=names[k], **line_of(k))
            handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
            ax.set(xlabel="seconds in rounds", ylabel="personal test accuracy", title=split)
        percent_axis(axes[0, 0], "accuracy")
        legend_of_panels(figure, [*handles.values()], [*handles])
        for ax in axes[:, 1:].flat:
            ax.set_ylabel("")
        for ax in axes.flat[len(splits) :]:
            ax.set_axis_off()
        return save(plt, figure, path)
