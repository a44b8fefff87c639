"""Pictures: functions of a metrics frame, a clients frame or reliability counts, each drawing on one axis.

Two entities keep their colours everywhere: the personal models blue, the global model orange. Text is never coloured.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..files import write_whole
from ..metrics.classification import MANY

if TYPE_CHECKING:
    import pandas as pd

PERSONAL, GLOBAL, INK, QUIET = "#2a78d6", "#c2570c", "#1f2328", "#8c959f"
COLOURS = [PERSONAL, GLOBAL, "#4b8a2f", "#8a5fbf", "#b8336a", "#1b8a8f"]  # of methods, and of few clients
#: so many clients have their names in a picture
NAMED = 30
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8eb",
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 150,
}


@contextmanager
def _styled() -> Iterator[Any]:
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    import matplotlib.pyplot as plt

    with mpl.rc_context(STYLE):
        yield plt


def _axis(ax: Any) -> Any:
    if ax is not None:
        return ax
    with _styled() as plt:
        return plt.subplots(figsize=(4.2, 3.1), layout="constrained")[1]


def _main(frame: pd.DataFrame) -> tuple[str, str]:
    """The metric that a task is judged by, and its label."""
    return ("accuracy", "test accuracy") if "pm_accuracy" in frame or "accuracy" in frame else ("rmse", "test RMSE")


def _percent(ax: Any, metric: str, axis: str = "y") -> None:
    from matplotlib.ticker import PercentFormatter

    if metric == "accuracy":
        low, high = getattr(ax, f"get_{axis}lim")()
        getattr(ax, f"{axis}axis").set_major_formatter(PercentFormatter(1, decimals=0 if high - low > 0.3 else 1))


def _sizes(ax: Any, n: Any) -> None:
    """The axis of client sizes: logarithmic with plain numbers, linear where they hardly differ."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    ax.set_xlabel("training examples of the client")
    if n.max() > 3 * n.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 3) if n.max() < 300 * n.min() else (1,)))
        ax.xaxis.set_minor_formatter(NullFormatter())
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))


def metric_over_rounds(metrics: pd.DataFrame, ax: Any = None) -> Any:
    """Personal and global test metric (accuracy or RMSE) over the rounds of a run; returns the axis."""
    from matplotlib.ticker import MaxNLocator

    ax = _axis(ax)
    metric, label = _main(metrics)
    test = metrics[metrics["split"] == "test"]
    for kind, colour, name in (("pm", PERSONAL, "personal models, mean"), ("gm", GLOBAL, "global model")):
        values = test[f"{kind}_{metric}"].astype(float)
        if values.notna().any():
            ax.plot(test["round"], values, color=colour, lw=1.8, marker="o" if len(test) < 4 else None, label=name)
    ax.set(xlabel="round", ylabel=label, title="Over rounds")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    _percent(ax, metric)
    ax.legend(loc="best")
    return ax


def metric_by_size(clients: pd.DataFrame, ax: Any = None) -> Any:
    """Each client's personal test metric against its number of training examples (pFedVEM, Figure 2)."""
    ax = _axis(ax)
    metric, label = _main(clients)
    ax.scatter(clients["n"], clients[metric], s=26, color=PERSONAL, alpha=0.75, edgecolor="white", linewidth=0.6)
    ax.axhline(clients[metric].mean(), color=QUIET, lw=1, ls="--", label="mean over clients")
    ax.set(ylabel=label, title="Large clients and small ones")
    _sizes(ax, clients["n"])
    _percent(ax, metric)
    ax.legend(loc="best")
    return ax


def reliability(bins: np.ndarray, ax: Any = None, averaged: np.ndarray | None = None) -> Any:
    """Accuracy against confidence, pooled over clients.

    Args:
        bins: (J, 15, 3) or (15, 3): how many, sum of confidences, how many right (:mod:`hierfl.metrics`).
        ax: where to draw.
        averaged: the same for predictions averaged over draws, where there are any.
    """
    ax = _axis(ax)
    ax.plot([0, 1], [0, 1], color=QUIET, lw=1, ls="--", label="calibrated")
    for those, colour in ((bins, PERSONAL), (averaged, GLOBAL)):
        if those is None:
            continue
        count, confidence, right = np.asarray(those).reshape(-1, those.shape[-2], 3).sum(0).T
        full = count > 0
        x, y = confidence[full] / count[full], right[full] / count[full]
        what = "personal models" if averaged is None else "posterior mean" if those is bins else "averaged draws"
        error = np.abs(confidence - right).sum() / count.sum()
        ax.plot(x, y, color=colour, lw=1.2, zorder=2, label=f"{what}, ECE {error:.3f}")
        sizes = 12 + 130 * count[full] / count.max()
        ax.scatter(x, y, s=sizes, color=colour, alpha=0.6, edgecolor="white", zorder=3)
    ax.set(xlim=(0, 1.05), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy")
    ax.set_title("Reliability of personal models, pooled")
    _percent(ax, "accuracy")
    _percent(ax, "accuracy", "x")
    ax.legend(loc="best")
    return ax


def metric_by_client(clients: pd.DataFrame, ax: Any = None) -> Any:
    """Each client's personal test metric beside its name, the first on top."""
    from matplotlib.ticker import MaxNLocator

    ax = _axis(ax)
    metric, label = _main(clients)
    places = np.arange(len(clients))
    ax.scatter(clients[metric], places, s=34, color=PERSONAL, edgecolor="white", linewidth=0.6, zorder=3)
    ax.axvline(clients[metric].mean(), color=QUIET, lw=1, ls="--", label="mean over clients")
    ax.set_yticks(places, clients["client"])
    ax.set(xlabel=label, ylim=(len(clients) - 0.5, -0.5), title="Client by client")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    _percent(ax, metric, "x")
    ax.legend(loc="best")
    return ax


def column_by_size(clients: pd.DataFrame, column: str, label: str, ax: Any = None) -> Any:
    """A column of clients.csv against the clients' sizes; a log scale where it spans a decade."""
    ax = _axis(ax)
    ax.scatter(clients["n"], clients[column], s=26, color=PERSONAL, alpha=0.75, edgecolor="white", linewidth=0.6)
    wide = clients[column].min() > 0 and clients[column].max() > 10 * clients[column].min()
    ax.set(yscale="log" if wide else "linear", ylabel=label)
    _sizes(ax, clients["n"])
    ax.set_title("Confidence in the client's model" if column == "tau" else column)
    return ax


def confidence_by_deviation(clients: pd.DataFrame, ax: Any = None) -> Any:
    """How far a client's model lies from the population's against how much the server believes it (pFedVEM); the axis.

    Columns n, tau and deviation; the larger a client, the larger its point.
    """
    ax = _axis(ax)
    area = 12 + 90 * clients["n"] / clients["n"].max()
    ax.scatter(
        clients["tau"], clients["deviation"], s=area, color=PERSONAL, alpha=0.6, edgecolor="white", linewidth=0.6
    )
    for axis, name in (("x", "tau"), ("y", "deviation")):
        if clients[name].min() > 0 and clients[name].max() > 10 * clients[name].min():
            getattr(ax, f"set_{axis}scale")("log")
    ax.set(xlabel="confidence $\\tau_j$ (area: n)", ylabel="deviation $|w_j - w|^2 / d$")
    ax.set_title("Confidence and deviation")
    return ax


#: rounds that a picture of densities shows; clients that it needs
DENSITIES, ENOUGH = 4, 8


def densities(history: pd.DataFrame, column: str, ax: Any = None) -> Any:
    """Distribution over clients of what a method has of them, in some rounds from first to last (``az.plot_kde``).

    pFedVEM's Figures 10 (tau: shown as confidence ratios, tau_j over the sum of all) and 11 (deviation).

    Args:
        history: columns round, client and this one.
        column: of the history.
        ax: where to draw.
    """
    from ..arviz_io import import_arviz

    ax, az = _axis(ax), import_arviz()
    values = {number: part[column].to_numpy(float) for number, part in history.groupby("round")}
    if column == "tau":
        values = {number: v / v.sum() for number, v in values.items()}
    seen = [number for number, v in values.items() if _spread_out(v)]
    if not seen:
        raise UserError(f"{column} is the same for all clients, or of too few, in every round")
    picked = sorted({seen[k] for k in np.linspace(0, len(seen) - 1, min(DENSITIES, len(seen))).round().astype(int)})
    for k, number in enumerate(picked):
        shade = 1.0 if len(picked) == 1 else 0.3 + 0.7 * k / (len(picked) - 1)
        how = {"color": PERSONAL, "alpha": shade, "linewidth": 1.6}
        az.plot_kde(values[number], ax=ax, label=f"round {number}", plot_kwargs=how, textsize=9)
    names = {"tau": "confidence ratio $\\tau_j / \\Sigma \\tau$", "deviation": "deviation $|w_j - w|^2 / d$"}
    title = {"tau": "Confidence in the clients", "deviation": "How far clients' models deviate"}.get(column, column)
    ax.set(xlabel=names.get(column, column), ylabel="density over clients", yticks=[], title=f"{title}, by round")
    ax.legend(loc="best", fontsize=8)
    return ax


def _spread_out(values: np.ndarray) -> bool:
    """Whether there is a density to see."""
    good = values[np.isfinite(values)]
    return len(good) >= ENOUGH and np.ptp(good) > 1e-6 * np.abs(good).max()


def who_reported(reports: pd.DataFrame, ax: Any = None) -> Any:
    """Who reported when: a column for each round, a row for each client; the axis.

    Args:
        reports: a row for each round (its index), a column for each client, numbers as in ``run.participation``:
            0 away, 1 reported, 2 message dropped, 3 diverged while away.
        ax: where to draw.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    ax, values = _axis(ax), reports.to_numpy()
    colours = {"away": "#e6e8eb", "reported": PERSONAL, "message dropped": GLOBAL, "diverged while away": INK}
    first, last = reports.index[0], reports.index[-1]
    # (no picture element is narrower than a pixel: nearest would lose rounds)
    ax.imshow(values.T, aspect="auto", cmap=ListedColormap(list(colours.values())), vmin=-0.5, vmax=3.5,
              interpolation="nearest", extent=(first - 0.5, last + 0.5, values.shape[1] - 0.5, -0.5))  # fmt: skip
    share = (values == 1).mean()
    ax.set(xlabel="round", title=f"Who reported when: {share:.0%} of all")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if values.shape[1] <= NAMED:
        ax.set_yticks(range(values.shape[1]), list(reports.columns), fontsize=6 if values.shape[1] > 12 else 8)
    else:
        ax.set_ylabel(f"{values.shape[1]} clients")
    ax.grid(visible=False)
    there = [Patch(color=c, label=name) for k, (name, c) in enumerate(colours.items()) if (values == k).any()]
    ax.legend(handles=there, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=2, fontsize=8)
    return ax


def metric_over_bytes(metrics: pd.DataFrame, ax: Any = None) -> Any:
    """What the personal models' test metric has cost: megabytes that all clients have sent; the axis."""
    ax = _axis(ax)
    metric, label = _main(metrics)
    test = metrics[metrics["split"] == "test"]
    ax.plot(test["bytes"] / 1e6, test[f"pm_{metric}"].astype(float), color=PERSONAL, lw=1.8, marker="o", ms=3)
    ax.set(xlabel="MB sent by all clients", ylabel=label, title="What it cost")
    _percent(ax, metric)
    return ax


def shrinkage(estimates: pd.DataFrame, effect: str, ax: Any = None, most: int = NAMED) -> Any:
    """Each client's own estimate, the hierarchical model's, shrunk to the population's, and the pooled one; the axis.

    Args:
        estimates: columns client, n, effect, local, population, pooled, hierarchical.
        effect: which.
        ax: where to draw.
        most: clients, evenly from the largest to the smallest.
    """
    ax, mine = _axis(ax), estimates[estimates["effect"] == effect].sort_values("n", ascending=False, kind="stable")
    mine = mine.iloc[np.unique(np.linspace(0, len(mine) - 1, min(most, len(mine))).round().astype(int))]
    rows, local, ours = np.arange(len(mine)), mine["local"].to_numpy(), mine["hierarchical"].to_numpy()
    ax.axvline(mine["population"].iloc[0], color=GLOBAL, lw=1.2, ls="--", label="population")
    ax.axvline(mine["pooled"].iloc[0], color=INK, lw=0.8, ls=":", label="pooled")
    ax.hlines(rows, local, ours, color=QUIET, lw=1)
    ax.scatter(local, rows, s=22, facecolor="white", edgecolor=PERSONAL, linewidth=1, zorder=3, label="client alone")
    ax.scatter(ours, rows, s=20, color=PERSONAL, zorder=4, label="hierarchical")
    ax.set_yticks(rows, [f"{c} ({n})" for c, n in zip(mine["client"], mine["n"], strict=True)],
                  fontsize=6 if len(mine) > 15 else 8)  # fmt: skip
    # (the own estimates of a few small clients may be so far out that nothing else could be seen)
    known = local[np.isfinite(local)]
    first, third = np.quantile(known, [0.25, 0.75]) if len(known) else (ours.min(), ours.max())
    centre = np.concatenate([ours, mine["population"].iloc[:1], mine["pooled"].iloc[:1]])
    low, high = min(centre.min(), first - 2 * (third - first)), max(centre.max(), third + 2 * (third - first))
    out = int(((known < low) | (known > high)).sum())
    if out:
        ax.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    none = int(np.isnan(local).sum())
    told = [f"{none} with no estimate alone"] * bool(none) + [f"{out} beyond"] * bool(out)
    ax.set(ylim=(len(mine) - 0.5, -0.5), xlabel=", ".join([f"coefficient of {effect}", *told]))
    ax.set_title(f"Shrinkage: {effect} (rows of a client)")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="best", fontsize=8)
    return ax


def caterpillar(clients: pd.DataFrame, effect: str, ax: Any = None) -> Any:
    """A random effect in every place, in order: posterior mean and central 90 %."""
    from matplotlib.ticker import MaxNLocator

    ax = _axis(ax)
    order = clients.sort_values(f"b[{effect}]")
    mean, half = order[f"b[{effect}]"], 1.645 * order[f"sd b[{effect}]"]
    places = np.arange(len(order))
    ax.hlines(places, mean - half, mean + half, color=PERSONAL, lw=1.2 if len(order) > 30 else 2, alpha=0.6)
    ax.scatter(mean, places, s=10 if len(order) > 30 else 22, color=PERSONAL, zorder=3)
    ax.axvline(0, color=QUIET, lw=1, ls="--")
    if len(order) <= 30:
        ax.set_yticks(places, order["client"])
    else:
        ax.set_yticks([])
        ax.set_ylabel(f"{len(order)} places, in order")
    ax.grid(visible=False, axis="y")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set(xlabel="deviation from the fixed effect, with central 90 %", title=f"Random effect: {effect}")
    return ax


def size_histogram(clients: pd.DataFrame, ax: Any = None) -> Any:
    """How many clients there are of each size."""
    ax = _axis(ax)
    low, high = clients["n"].min(), clients["n"].max()
    edges = np.arange(low - 0.5, high + 1) if high - low < 12 else np.geomspace(low, high + 1, 12)
    ax.hist(clients["n"], bins=edges, color=PERSONAL, alpha=0.8, edgecolor="white")
    ax.set(ylabel="clients", title="How large the clients are")
    ax.yaxis.get_major_locator().set_params(integer=True)
    _sizes(ax, clients["n"])
    return ax


def worst_calibrated(bins: np.ndarray) -> int | None:
    """Which client has the largest ECE, of those with at least MANY test examples; None where nobody has.

    Args:
        bins: (J, 15, 3), as for :func:`reliability`.
    """
    count, confidence, right = np.moveaxis(np.asarray(bins, float), -1, 0)
    errors = np.abs(confidence - right).sum(1) / np.maximum(count.sum(1), 1)
    errors[count.sum(1) < MANY] = -1
    return int(errors.argmax()) if errors.max() >= 0 else None


def client_reliability(bins: np.ndarray, ax: Any = None, names: Sequence[str] = ()) -> Any:
    """Accuracy against confidence, a line for every client, and all of them together.

    Args:
        bins: (J, 15, 3), as for :func:`reliability`.
        ax: where to draw.
        names: of the clients; few of them have colours of their own.
    """
    few = 0 < len(names) <= len(COLOURS)
    ax = _axis(ax)
    ax.plot([0, 1], [0, 1], color=QUIET, lw=1, ls="--", label="calibrated")
    for k, (count, confidence, right) in enumerate(np.moveaxis(np.asarray(bins), -1, 1)):
        full = count >= 5  # (fewer say nothing)
        label = names[k] if few else "a client (bins of five and more)" if k == 0 else None
        how = {"color": COLOURS[k], "lw": 1.2} if few else {"color": PERSONAL, "lw": 0.7, "alpha": 0.3}
        # (a client that is always as sure fills one bin: a point where no line can be)
        mark = "o" if full.sum() == 1 else None
        ax.plot(confidence[full] / count[full], right[full] / count[full], label=label, marker=mark, ms=3, **how)
    if not few and (worst := worst_calibrated(bins)) is not None:
        count, confidence, right = np.moveaxis(np.asarray(bins)[worst], -1, 0)
        full, error = count >= min(5, count.max()), np.abs(confidence - right).sum() / count.sum()
        name = names[worst] if len(names) else worst
        ax.plot(confidence[full] / count[full], right[full] / count[full], color=INK, lw=1.4, marker="o", ms=3,
                label=f"worst: client {name}, ECE {error:.2f}")  # fmt: skip
    count, confidence, right = np.asarray(bins).sum(0).T
    full = count > 0
    pooled = {"color": INK, "lw": 1.8, "alpha": 0.5} if few else {"color": GLOBAL, "lw": 1.8}
    ax.plot(confidence[full] / count[full], right[full] / count[full], label="pooled", **pooled)
    ax.set(xlim=(0, 1.05), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy", title="Reliability of each client")
    _percent(ax, "accuracy")
    _percent(ax, "accuracy", "x")
    ax.legend(loc="best")
    return ax


def entropy_histograms(pairs: Sequence[tuple[np.ndarray, np.ndarray]], ax: Any = None) -> Any:
    """Predictive entropy of every client's model on its own test data and on strange inputs (FedPop, Figure 4).

    Args:
        pairs: (own, strange) entropies in nats of each client.
        ax: where to draw.
    """
    ax = _axis(ax)
    pairs = [(own, other) for own, other in pairs if len(own)]
    top = max(float(np.concatenate(pair).max()) for pair in pairs)
    edges = np.linspace(0, max(top, 1e-3), 31)
    for which, colour, name in ((0, PERSONAL, "own test data"), (1, GLOBAL, "strange inputs")):
        heights = [np.histogram(pair[which], edges)[0] / len(pair[which]) for pair in pairs]
        for height in heights[:100]:
            ax.stairs(height, edges, color=colour, lw=0.5, alpha=0.15)
        ax.stairs(np.mean(heights, 0), edges, color=colour, lw=2, label=name)
    ax.set(xlabel="predictive entropy (nats)", ylabel="share of the inputs", title="What the models are unsure of")
    _percent(ax, "accuracy")
    ax.legend(loc="upper right", title="mean, and each client")
    return ax


def movement(metrics: pd.DataFrame, ax: Any = None) -> Any:
    """How far what is shared moved in a round, over the rounds: root mean square of each rule's values."""
    ax = _axis(ax)
    rows = metrics[(metrics["split"] == metrics["split"].iloc[-1]) & (metrics["round"] > 0)]
    for k, name in enumerate(c for c in metrics if c.startswith("moved_")):
        values = rows[name].astype(float)
        if (values > 0).sum() > 1:
            ax.plot(rows["round"], values.where(values > 0), color=COLOURS[2 + k % 4], lw=1.6,
                    marker="o" if len(rows) < 4 else None, label=name.removeprefix("moved_"))  # fmt: skip
    ax.set(yscale="log", xlabel="round", ylabel="moved in the round (RMS)", title="What is shared, moving")
    ax.legend(loc="best")
    return ax


def embedding(z: np.ndarray) -> np.ndarray:
    """Features (N, D) in the plane by t-SNE, the same each time: (N, 2)."""
    from sklearn.manifold import TSNE

    return TSNE(perplexity=min(30.0, (len(z) - 1) / 3), init="pca", random_state=0).fit_transform(z)


def feature_map(places: np.ndarray, labels: np.ndarray, what: str, ax: Any = None) -> Any:
    """Features in the plane (:func:`embedding`), coloured by what they belong to.

    Args:
        places: (N, 2).
        labels: (N,), of class or client.
        what: they are.
        ax: where to draw.
    """
    import matplotlib.pyplot as plt

    ax, names = _axis(ax), np.unique(labels)
    colours = plt.get_cmap("tab10" if len(names) <= 10 else "turbo")
    for k, name in enumerate(names):
        here = places[labels == name]
        colour = colours(k if len(names) <= 10 else k / (len(names) - 1))
        ax.scatter(here[:, 0], here[:, 1], s=5, color=colour, linewidth=0, alpha=0.8, label=str(name))
    ax.set(xticks=[], yticks=[], title=f"Features by {what} (t-SNE)")
    ax.grid(visible=False)
    if len(names) <= 12:
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2.5)
    return ax


def panels(
    metrics: pd.DataFrame,
    clients: pd.DataFrame,
    bins: np.ndarray | None,
    entropies: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    averaged: np.ndarray | None = None,
    history: pd.DataFrame | None = None,
    participation: pd.DataFrame | None = None,
    estimates: pd.DataFrame | None = None,
) -> dict[str, Callable[[Any], Any]]:
    """The pictures of a run by name, each a function of an axis; those that its data do not allow are left out."""
    drawn: dict[str, Callable[[Any], Any]] = {}
    if len(metrics) and (metrics["split"] == "test").any():
        drawn["rounds"] = lambda ax: metric_over_rounds(metrics, ax)
    moved = [c for c in metrics if c.startswith("moved_")]
    if moved and (metrics[metrics["split"] == metrics["split"].iloc[-1]][moved] > 0).sum().max() > 1:
        drawn["movement"] = lambda ax: movement(metrics, ax)
    if _main(clients)[0] in clients and clients[_main(clients)[0]].notna().any():
        alike = clients["n"].max() <= 1.05 * clients["n"].min() and 1 < len(clients) <= NAMED
        draw = metric_by_client if alike else metric_by_size
        drawn["clients" if alike else "sizes"] = partial(draw, clients)
    if bins is not None and bins.sum() > 0:
        drawn["reliability"] = lambda ax: reliability(bins, ax, averaged)
        drawn["reliability-clients"] = lambda ax: client_reliability(bins, ax, list(clients["client"]))
    if entropies:
        drawn["entropy"] = lambda ax: entropy_histograms(entropies, ax)
    if "tau" in clients:
        drawn["confidence"] = lambda ax: column_by_size(clients, "tau", "confidence $\\tau_j$", ax)
        if "deviation" in clients:
            drawn["confidence-deviation"] = lambda ax: confidence_by_deviation(clients, ax)
    if history is not None:
        for column in (c for c in ("tau", "deviation") if c in history):
            if any(_spread_out(part[column].to_numpy(float)) for _, part in history.groupby("round")):
                drawn[f"density-{column}"] = partial(densities, history, column)
    for name in [c[2:-1] for c in clients if c.startswith("b[")]:
        drawn[f"effects-{_slug(name)}"] = partial(caterpillar, clients, name)
    for name in [] if estimates is None else dict.fromkeys(estimates["effect"]):
        drawn[f"shrinkage-{_slug(name)}"] = partial(shrinkage, estimates, name)
    if participation is not None and (participation.to_numpy() != 1).any():
        drawn["participation"] = lambda ax: who_reported(participation, ax)
    if (
        "rounds" in drawn
        and "bytes" in metrics
        and metrics["bytes"].max() > 0
        and (metrics["split"] == "test").sum() > 1
    ):
        drawn["cost"] = lambda ax: metric_over_bytes(metrics, ax)
    if "tau" not in clients and "clients" not in drawn:
        drawn["histogram"] = lambda ax: size_histogram(clients, ax)
    return drawn


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def save_all(
    folder: Path, drawn: dict[str, Callable[[Any], Any]], title: str, together: str = "overview"
) -> list[Path]:
    """Writes every picture to ``folder/NAME.png``, and all of them beside each other to one more."""
    folder.mkdir(parents=True, exist_ok=True)
    with _styled() as plt:
        paths = []
        for name, draw in drawn.items():
            figure, ax = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
            draw(ax)
            paths.append(_save(plt, figure, folder / f"{name}.png"))
        lines = max(1, -(-len(drawn) // 2))
        figure, axes = plt.subplots(lines, 2, figsize=(8.4, 3.2 * lines), layout="constrained", squeeze=False)
        for ax, draw in zip(axes.flat, drawn.values(), strict=False):
            draw(ax)
        for ax in axes.flat[len(drawn) :]:
            ax.set_axis_off()
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
        return [*paths, _save(plt, figure, folder / f"{together}.png")]


#: what is set as mathematics: parts of our own labels, and a scale's numbers; a name with dollars is a name
_SCALE = r"\\mathdefault\{(?:[0-9.]+\\times)?[0-9]+(?:\^\{-?[0-9.]+\})?\}"
_MATHS = re.compile(rf"[^$]*\$(?:\\tau_j(?: / \\Sigma \\tau)?|\|w_j - w\|\^2 / d|{_SCALE})\$[^$]*")


def _plain(text: str) -> str:
    """A text in which dollars are dollars, but for mathematics of ours."""
    return text if _MATHS.fullmatch(text) else text.replace("$", r"\$")


def _plain_of(words: Callable[[float, int | None], object], x: float, place: int | None = None) -> str:
    """The label of a tick, plain."""
    return _plain(str(words(x, place)))


def _names_as_they_are(figure: Any) -> None:
    """Names of clients, columns and data come from elsewhere, and need not be TeX."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for axis in [axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]:
        if isinstance(formatter := axis.get_major_formatter(), FuncFormatter):  # (which names of ticks are)
            formatter.func = partial(_plain_of, formatter.func)
    for text in figure.findobj(Text):
        text.set_text(_plain(text.get_text()))


def _save(plt: Any, figure: Any, path: Path) -> Path:
    _names_as_they_are(figure)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    write_whole(path, picture.getvalue())
    plt.close(figure)
    return path
