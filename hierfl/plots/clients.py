"""Clients: their metrics and what a method has of them, against their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .legible import legend_below, name_rows
from .registry import figure, once
from .style import (
    GLOBAL,
    MAX_SINGLE_CLIENTS,
    PERSONAL,
    QUIET,
    axis_for,
    client_points,
    main_metric,
    percent_axis,
    size_axis,
)  # fmt: skip

if TYPE_CHECKING:
    import pandas as pd


@figure(
    "sizes", "Clients", "Each client's personal model on its own test data.", position=1, source="run",
    needs=lambda run: once(run.measured and run.several and not run.alike, "sizes", clients=run.clients), order=3,
)  # fmt: skip
def metric_by_size(clients: pd.DataFrame, ax: Any = None) -> Any:
    """Each client's personal test metric against its number of training examples (pFedVEM, Figure 2)."""
    ax = axis_for(ax)
    metric, label = main_metric(clients)
    client_points(ax, clients["n"], clients[metric])
    ax.axhline(clients[metric].mean(), color=QUIET, lw=1, ls="--", label="mean over clients")
    ax.set(ylabel=label, title="Large clients and small ones")
    size_axis(ax, clients["n"])
    percent_axis(ax, metric)
    legend_below(ax)
    return ax


@figure(
    "clients", "Clients", "Each client's personal model on its own test data.", position=2, source="run",
    needs=lambda run: once(run.measured and run.alike, "clients", clients=run.clients), order=3,
)  # fmt: skip
def metric_by_client(clients: pd.DataFrame, ax: Any = None) -> Any:
    """Each client's personal test metric beside its name, the first on top."""
    from matplotlib.ticker import MaxNLocator

    ax = axis_for(ax)
    metric, label = main_metric(clients)
    places = np.arange(len(clients))
    ax.scatter(clients[metric], places, s=34, color=PERSONAL, edgecolor="white", linewidth=0.6, zorder=3)
    ax.axvline(clients[metric].mean(), color=QUIET, lw=1, ls="--", label="mean over clients")
    name_rows(ax, list(clients["client"]))
    ax.set(xlabel=label, title="Client by client")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    percent_axis(ax, metric, "x")
    legend_below(ax)
    return ax


_CONFIDENCE = "The confidence tau_j, a client's weight at the server, against the client's size."
_DEVIATION = "How far a client's model lies from the population's, against the client's weight at the server."


@figure("confidence", "Who gains", _CONFIDENCE, page="comparison", position=2)
@figure(
    "confidence", "Clients", _CONFIDENCE, position=4, source="run", order=7,
    needs=lambda run: once(
        "tau" in run.clients and run.several, "confidence",
        clients=run.clients, column="tau", label="confidence $\\tau_j$",
    ),
)  # fmt: skip
def column_by_size(clients: pd.DataFrame, column: str, label: str, ax: Any = None) -> Any:
    """A column of clients.csv against the clients' sizes; a log scale where it spans a decade."""
    ax = axis_for(ax)
    client_points(ax, clients["n"], clients[column])
    wide = clients[column].min() > 0 and clients[column].max() > 10 * clients[column].min()
    ax.set(yscale="log" if wide else "linear", ylabel=label)
    size_axis(ax, clients["n"])
    ax.set_title("Confidence in the client's model" if column == "tau" else column)
    return ax


@figure("confidence-deviation", "Who gains", _DEVIATION, page="comparison", position=2)
@figure(
    "confidence-deviation", "Clients", _DEVIATION, position=4, source="run", order=8,
    needs=lambda run: once(
        {"tau", "deviation"} <= set(run.clients) and run.several, "confidence-deviation", clients=run.clients
    ),
)  # fmt: skip
def confidence_by_deviation(clients: pd.DataFrame, ax: Any = None) -> Any:
    """How far a client's model lies from the population's against how much the server believes it (pFedVEM); the axis.

    Columns n, tau and deviation; the larger a client, the larger its point, where they are not too many.
    """
    ax = axis_for(ax)
    area = 12 + 90 * clients["n"] / clients["n"].max()
    client_points(ax, clients["tau"], clients["deviation"], area, 0.6)
    for axis, name in (("x", "tau"), ("y", "deviation")):
        if clients[name].min() > 0 and clients[name].max() > 10 * clients[name].min():
            getattr(ax, f"set_{axis}scale")("log")
    of_size = " (area: n)" if len(clients) <= MAX_SINGLE_CLIENTS else ""
    ax.set(xlabel=f"confidence $\\tau_j${of_size}", ylabel="deviation $|w_j - w|^2 / d$")
    ax.set_title("Confidence and deviation")
    return ax


@figure(
    "histogram", "Clients", "The number of clients by number of training examples.", position=3, source="run", order=15,
    needs=lambda run: once(
        "tau" not in run.clients and run.several and not (run.measured and run.alike), "histogram",
        clients=run.clients,
    ),
)  # fmt: skip
def size_histogram(clients: pd.DataFrame, ax: Any = None) -> Any:
    """How many clients there are of each size."""
    ax = axis_for(ax)
    low, high = clients["n"].min(), clients["n"].max()
    edges = np.arange(low - 0.5, high + 1) if high - low < 12 else np.geomspace(low, high + 1, 12)
    ax.hist(clients["n"], bins=edges, color=PERSONAL, alpha=0.8, edgecolor="white")
    ax.set(ylabel="clients", title="How large the clients are")
    ax.yaxis.get_major_locator().set_params(integer=True)
    size_axis(ax, clients["n"])
    return ax


@figure(
    "entropy", "Clients",
    "Predictive entropy of every client's model on its own test data, and on data of another kind.",
    position=5, source="run", needs=lambda run: once(bool(run.entropies), "entropy", pairs=run.entropies), order=6,
)  # fmt: skip
def entropy_histograms(pairs: Sequence[tuple[np.ndarray, np.ndarray]], ax: Any = None) -> Any:
    """Predictive entropy of every client's model on its own test data and on strange inputs (FedPop, Figure 4).

    Args:
        pairs: (own, strange) entropies in nats of each client.
        ax: where to draw.
    """
    ax = axis_for(ax)
    pairs = [(own, other) for own, other in pairs if len(own)]
    top = max(float(np.concatenate(pair).max()) for pair in pairs)
    edges = np.linspace(0, max(top, 1e-3), 31)
    for which, colour, name in ((0, PERSONAL, "own test data"), (1, GLOBAL, "strange inputs")):
        heights = [np.histogram(pair[which], edges)[0] / len(pair[which]) for pair in pairs]
        for height in heights[:100]:
            ax.stairs(height, edges, color=colour, lw=0.5, alpha=0.15)
        ax.stairs(np.mean(heights, 0), edges, color=colour, lw=2, label=f"{name}, mean over clients")
    ax.set(xlabel="predictive entropy (nats)", ylabel="share of the inputs", title="What the models are unsure of")
    percent_axis(ax, "accuracy")
    legend_below(ax)
    return ax
