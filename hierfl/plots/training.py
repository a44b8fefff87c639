"""A run over its rounds: metrics, movement, who reported, what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .legible import legend_below, name_rows
from .registry import Drawing, figure, once
from .style import COLOURS, GLOBAL, INK, MAX_NAMED_CLIENTS, PERSONAL, axis_for, main_metric, percent_axis
from .tables import RunTables

if TYPE_CHECKING:
    import pandas as pd


@figure(
    "rounds", "Over rounds", "The metric on the clients' test data, after each round that was evaluated.",
    position=1, source="run", needs=lambda run: once(run.tested > 0, "rounds", metrics=run.metrics), order=1,
)  # fmt: skip
def metric_over_rounds(metrics: pd.DataFrame, ax: Any = None) -> Any:
    """Personal and global test metric (accuracy or RMSE) over the rounds of a run; returns the axis."""
    from matplotlib.ticker import MaxNLocator

    ax = axis_for(ax)
    metric, label = main_metric(metrics)
    test = metrics[metrics["split"] == "test"]
    for kind, colour, name in (("pm", PERSONAL, "personal models, mean"), ("gm", GLOBAL, "global model")):
        values = test[f"{kind}_{metric}"].astype(float)
        if values.notna().any():
            ax.plot(test["round"], values, color=colour, lw=1.8, marker="o" if len(test) < 4 else None, label=name)
    ax.set(xlabel="round", ylabel=label, title="Over rounds")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    percent_axis(ax, metric)
    legend_below(ax)
    return ax


@figure(
    "bound", "Over rounds",
    "How far the guide's evidence lower bound is below its highest value, with few draws and with many, on a "
    "logarithmic scale above 1. For the rounds of the exploration: the number of independent draws that its points "
    "are worth.",
    position=2, source="run", order=2,
    needs=lambda run: once(run.trace is not None and len(run.trace) > 1, "bound", trace=run.trace),
)  # fmt: skip
def bound_over_rounds(trace: pd.DataFrame, ax: Any = None) -> Any:
    """The bound of a plain model's guide over the rounds of its climb, and the worth of the points; the axis."""
    from matplotlib.ticker import MaxNLocator

    ax = axis_for(ax)
    for phase, colour, label in (("rough", INK, "few draws"), ("fine", PERSONAL, "many draws")):
        climb = trace[trace["phase"] == phase]
        if len(climb):
            below = climb["bound"].max() - climb["bound"]
            ax.plot(climb["round"], below, color=colour, lw=1.8, marker="o", ms=3, label=label)
    explored = trace[trace["phase"] == "explore"]
    ax.set_yscale("symlog", linthresh=1)
    ax.set(xlabel="round", ylabel="bound, below its highest", title="The guide's climb")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    right = []
    if len(explored):
        right.append(other := ax.twinx())
        label = "worth of the points (right)"
        other.plot(explored["round"], explored["worth"], color=GLOBAL, lw=1.8, marker="s", ms=3, label=label)
        other.grid(visible=False)
        other.spines["right"].set_visible(True)
        other.set_ylim(0, 1.3 * explored["worth"].max() + 1)
        other.set_ylabel("independent draws")
    legend_below(ax, *right)
    return ax


def _absent(run: RunTables) -> Iterator[Drawing]:
    reports = run.participation
    if reports is not None and (reports.to_numpy() != 1).any():
        yield "participation", {"reports": reports}


@figure(
    "participation", "Who reported when", "A row for each client, a column for each round.",
    source="run", needs=_absent, order=13,
)  # fmt: skip
def who_reported(reports: pd.DataFrame, ax: Any = None) -> Any:
    """Who reported when: a column for each round, a row for each client; the axis.

    Args:
        reports: a row for each round (its index), a column for each client, numbers as in ``run.participation``:
            0 absent, 1 reported, 2 message rejected, 3 diverged while absent.
        ax: where to draw.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    ax, values = axis_for(ax), reports.to_numpy()
    colours = {"absent": "#e6e8eb", "reported": PERSONAL, "message rejected": GLOBAL, "diverged while absent": INK}
    first, last = reports.index[0], reports.index[-1]
    # No picture element is narrower than a pixel: nearest would lose rounds.
    ax.imshow(values.T, aspect="auto", cmap=ListedColormap(list(colours.values())), vmin=-0.5, vmax=3.5,
              interpolation="nearest", extent=(first - 0.5, last + 0.5, values.shape[1] - 0.5, -0.5))  # fmt: skip
    share = (values == 1).mean()
    ax.set(xlabel="round", title=f"Who reported when: {share:.0%} of all")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if values.shape[1] <= MAX_NAMED_CLIENTS:
        name_rows(ax, list(reports.columns))
    else:
        ax.set_ylabel(f"{values.shape[1]} clients")
    ax.grid(visible=False)
    handles = [Patch(color=c, label=name) for k, (name, c) in enumerate(colours.items()) if (values == k).any()]
    legend_below(ax, *handles)
    return ax


def _sent(run: RunTables) -> Iterator[Drawing]:
    if "bytes" not in run.metrics or run.tested < 2:
        return
    test = run.metrics[run.metrics["split"] == "test"]
    # Where each round sends as much, this would be the curve over rounds once more.
    by_round = (test["bytes"] / test["round"].where(test["round"] > 0)).dropna()
    if len(by_round) > 1 and by_round.max() > 1.01 * by_round.min() > 0:
        yield "cost", {"metrics": run.metrics}


@figure(
    "cost", "Cost", "The test metric against the megabytes that clients have sent.", source="run", needs=_sent, order=14
)  # fmt: skip
def metric_over_bytes(metrics: pd.DataFrame, ax: Any = None) -> Any:
    """What the personal models' test metric has cost: megabytes that all clients have sent; the axis."""
    ax = axis_for(ax)
    metric, label = main_metric(metrics)
    test = metrics[metrics["split"] == "test"]
    ax.plot(test["bytes"] / 1e6, test[f"pm_{metric}"].astype(float), color=PERSONAL, lw=1.8, marker="o", ms=3)
    ax.set(xlabel="MB sent by all clients", ylabel=label, title="What it cost")
    percent_axis(ax, metric)
    return ax


def _moves(run: RunTables) -> Iterator[Drawing]:
    metrics = run.metrics
    moved = [c for c in metrics if c.startswith("update_norm_")]
    if moved and (metrics[metrics["split"] == metrics["split"].iloc[-1]][moved] > 0).sum().max() > 1:
        yield "movement", {"metrics": metrics}


@figure(
    "movement", "Over rounds", "The change of the server's values in each round.",
    position=2, source="run", needs=_moves, order=2,
)  # fmt: skip
def movement(metrics: pd.DataFrame, ax: Any = None) -> Any:
    """How far what is shared moved in a round, over the rounds: root mean square of each rule's values."""
    from matplotlib.ticker import MaxNLocator

    ax = axis_for(ax)
    rows = metrics[(metrics["split"] == metrics["split"].iloc[-1]) & (metrics["round"] > 0)]
    for k, name in enumerate(c for c in metrics if c.startswith("update_norm_")):
        values = rows[name].astype(float)
        if (values > 0).sum() > 1:
            ax.plot(rows["round"], values.where(values > 0), color=COLOURS[2 + k % 4], lw=1.6,
                    marker="o" if len(rows) < 4 else None, label=name.removeprefix("update_norm_"))  # fmt: skip
    ax.set(yscale="log", xlabel="round", ylabel="moved in the round (RMS)", title="What is shared, moving")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    legend_below(ax)
    return ax
