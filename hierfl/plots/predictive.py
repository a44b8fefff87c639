"""Posterior-predictive checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.special import ndtri

from .distributions import POINTS, density_at
from .forest import INTERVAL
from .legible import legend_below, name_rows, title
from .posterior_numbers import Posterior, clients_by_size
from .registry import Drawing, figure, once
from .style import GLOBAL, INK, MAX_NAMED_CLIENTS, PERSONAL, QUIET, axis_for, percent_axis

#: draws of the posterior predictive that a check shows
MAX_PREDICTIVE_DRAWS = 50
#: rows that a picture of residuals shows
MAX_ROWS = 2000
#: bins of whole numbers, ticks of them, and letters of all ticks
MOST_STEPS, MOST_TICKS, TICK_LETTERS = 40, 11, 60


@figure(
    "predictive-check", "Posterior-predictive checks",
    "Training data and draws of the fitted model. If the draws differ from the data, the model is wrong. If they "
    "agree, it may still be wrong.",
    position=1, source="posterior", order=6,
    needs=lambda posterior: once(posterior.predicted, "predictive-check", data=posterior.data),
)  # fmt: skip
def predictive_check(data: Any, ax: Any = None) -> Any:
    """All training data beside draws of the posterior predictive, and their mean; the axis.

    Whole numbers have a bar for each, or for each of at most :data:`MOST_STEPS` bins; others have smoothed densities.
    """
    ax, observed = axis_for(ax), data.observed_data["y"]
    y = observed.values.ravel()
    new = data.posterior_predictive["y"].stack(sample=("chain", "draw")).transpose("sample", ...).values
    picked = np.linspace(0, len(new) - 1, min(MAX_PREDICTIVE_DRAWS, len(new))).round().astype(int)
    new = new.reshape(len(new), -1)[np.unique(picked)]
    whole = np.array_equal(y, np.round(y))
    ax.set(xlabel=observed.attrs.get("long_name", "y"), title="Posterior-predictive check, training data")
    if whole:
        _bars(y, new, ax, _label_names(data))
    else:
        at, of_data, of_draws = _smooth(y, new)
        for k, height in enumerate(of_draws):
            ax.plot(at, height, color=PERSONAL, alpha=0.3, lw=0.7, label=None if k else "posterior predictive draws")
        ax.plot(at, np.mean(of_draws, 0), color=GLOBAL, lw=1.4, ls="--", label="their mean")
        ax.plot(at, of_data, color=INK, lw=1.4, label="data")
        ax.set(ylabel="density", yticks=[], ylim=(0, None))
    legend_below(ax)
    return ax


def _label_names(data: Any) -> dict[str, str]:
    """What the classes 0, 1, ... are called, where they have names."""
    constants = getattr(data, "constant_data", {})
    return {str(k): str(name) for k, name in enumerate(constants["label"].values)} if "label" in constants else {}


def _bars(y: np.ndarray, new: np.ndarray, ax: Any, called: Mapping[str, str]) -> None:
    """Shares of whole numbers: bars of the data, beside the mean and the central 90 % of the draws' shares."""
    names, of_data, of_draws = shares(y, new)
    names = [called.get(name, name) for name in names]
    at, wide = np.arange(len(names)), len(names) > MOST_TICKS
    ax.bar(at, of_data, 0.8, color=QUIET, alpha=0.5, lw=0, label="data")
    low, high = np.quantile(of_draws, [0.5 - INTERVAL / 2, 0.5 + INTERVAL / 2], axis=0)
    ax.vlines(at, low, high, color=PERSONAL, lw=1.4, label="posterior predictive, 90 %")
    ax.plot(at, of_draws.mean(0), "o", color=PERSONAL, ms=3 if wide else 5, markerfacecolor="white", label="its mean")
    longest = max(map(len, names))
    every = -(-len(names) // MOST_TICKS) if longest < 4 else -(-len(names) * (longest + 2) // TICK_LETTERS)
    if called and len(names) <= MOST_TICKS:  # a name cannot be guessed from its neighbours, as a number can
        ax.set_xticks(at, names, fontsize=7 if longest > 3 else 9, rotation=30 * (every > 1))
    else:
        ax.set_xticks(at[::every], names[::every], fontsize=7 if longest > 3 else 9)
    ax.set(ylabel="share of the rows", xlim=(-0.7, len(names) - 0.3), ylim=(0, None))
    ax.grid(visible=False, axis="x")
    percent_axis(ax, "accuracy")


def _smooth(y: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Points, and there the densities of the data and of each draw (S, N)."""
    pooled = np.concatenate([y, new.ravel()])
    low, high = np.quantile(pooled[np.isfinite(pooled)], [0.001, 0.999])
    at = np.linspace(min(low, y.min()), max(high, y.max()), POINTS)
    return at, density_at(y, at), [density_at(row, at) for row in new]


def shares(y: np.ndarray, new: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Shares of whole numbers among the data y (N,) and among each draw (S, N).

    Returns:
        Names of K bins, shares of the data (K,), and of each draw (S, K). A bin is one number, or several of at most
        :data:`MOST_STEPS` equal bins. The first and the last hold whatever is beyond them.
    """
    pooled = np.concatenate([y, new.ravel()])
    pooled = pooled[np.isfinite(pooled)]
    low, high = int(pooled.min()), int(np.ceil(pooled.max()))
    if high - low >= MOST_STEPS:  # a long tail would leave a few bins with all the rest
        low, high = (int(v) for v in np.quantile(pooled, [0.002, 0.998]).round())
    width = max(1, -(-(high - low + 1) // MOST_STEPS))
    starts = np.arange(low, high + 1, width)
    edges = np.concatenate([[-np.inf], starts[1:] - 0.5, [np.inf]])
    ends = starts + width - 1
    names = [str(a) if width == 1 else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    if pooled.max() >= ends[-1] + 1:
        names[-1] = f"≥{starts[-1]}"
    if pooled.min() < low:
        names[0] = f"≤{ends[0]}"
    rows = np.array([_histogram(row, edges) for row in (y, *new)])
    return names, rows[0], rows[1:]


def _histogram(row: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Shares of numbers between edges."""
    inside = np.searchsorted(edges, row[np.isfinite(row)]) - 1
    return np.bincount(inside, minlength=len(edges) - 1) / max(1, len(row))


@figure(
    "predictive-check-clients", "Posterior-predictive checks",
    "The mean of each client's training data, and of draws from its own model. For labels: the share of its most "
    "frequent label.",
    position=2, source="posterior", order=7,
    needs=lambda posterior: once(
        posterior.predicted and posterior.several, "predictive-check-clients", data=posterior.data
    ),
)  # fmt: skip
def predictive_check_by_client(data: Any, ax: Any = None, most: int = MAX_NAMED_CLIENTS) -> Any:
    """Draws each client's mean of the data beside what its model's draws give, with their central 90 %; returns the
    axis.

    The mean is of the response; of labels, of being the one that the client has most of.

    Args:
        data: an InferenceData.
        ax: where to draw.
        most: clients, evenly from the largest to the smallest.
    """
    ax, names = axis_for(ax), clients_by_size(data, most)
    new = data.posterior_predictive["y"].stack(sample=("chain", "draw")).transpose("obs", "sample").values
    y, owner = data.observed_data["y"].values, data.observed_data["client"].values
    labels, outside = np.issubdtype(y.dtype, np.integer), 0
    what = data.observed_data["y"].attrs.get("long_name", "y")
    with_rows = [name for name in names if (owner == name).any()]
    for row, name in enumerate(with_rows):
        mine = owner == name
        own, drawn = y[mine], new[mine]
        if labels:
            common = np.bincount(own).argmax()
            own, drawn = own == common, drawn == common
        low, high = np.quantile(drawn.mean(0), [0.5 - INTERVAL / 2, 0.5 + INTERVAL / 2])
        outside += bool(own.mean() < low or own.mean() > high)
        ax.hlines(row, low, high, color=PERSONAL, lw=3, alpha=0.5, label="models' draws, 90 %" if not row else None)
        ax.plot(own.mean(), row, "o", color=INK, ms=4, label="data" if not row else None)
    name_rows(ax, with_rows)
    binary = set(np.unique(y).tolist()) <= {0, 1}
    ax.set_xlabel("share of the commonest label" if labels else f"share of {what} = 1" if binary else f"mean of {what}")
    title(ax, f"Client by client: {outside} of {len(with_rows)} outside")
    legend_below(ax)
    return ax


def _responses(posterior: Posterior) -> Iterator[Drawing]:
    """The responses of predictions whose response is no label."""
    if posterior.predicted and not np.issubdtype(posterior.data.observed_data["y"].dtype, np.integer):
        yield "residuals", {"data": posterior.data}


@figure(
    "residuals", "Posterior-predictive checks",
    "Randomised quantile residuals: each row's position in its predicted distribution, as a normal quantile. For "
    "discrete responses the position is random within the step. For any response they are standard normal if the model "
    "is right, at every fitted value. A trend or a funnel shows where it is wrong.",
    position=3, source="posterior", order=8, needs=_responses,
)  # fmt: skip
def residuals(data: Any, ax: Any = None, most: int = MAX_ROWS) -> Any:
    """Randomised quantile residuals (Dunn and Smyth, JCGS 1996) beside fitted values; the axis.

    Args:
        data: an InferenceData with posterior predictive draws and observed data.
        ax: where to draw.
        most: rows, evenly among all.
    """
    ax, y = axis_for(ax), data.observed_data["y"].values
    new = data.posterior_predictive["y"].stack(sample=("chain", "draw")).transpose("obs", "sample").values
    some = np.unique(np.linspace(0, len(y) - 1, min(most, len(y))).round().astype(int))
    y, new = y[some], new[some]
    fitted, residual = new.mean(1), quantile_residuals(y, new)
    ax.axhline(0, color=QUIET, lw=1, ls="--")
    ax.scatter(fitted, residual, s=12, color=PERSONAL, alpha=0.5, edgecolor="none")
    order = np.argsort(fitted, kind="stable")
    parts = [part for part in np.array_split(order, min(12, max(2, len(y) // 15))) if len(part)]
    middle = [fitted[part].mean() for part in parts]
    ax.plot(middle, [residual[part].mean() for part in parts], color=GLOBAL, lw=1.6, label="mean")
    spread = [residual[part].std() for part in parts]
    ax.plot(middle, spread, color=GLOBAL, lw=1, ls=":", label="standard deviation")
    ax.set(xlabel="fitted", ylabel="quantile residual", title="Residuals, training data")
    legend_below(ax)
    return ax


def quantile_residuals(y: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Normal quantiles of the positions of y (n,) among draws (n, D); equal ones in a random, fixed order."""
    below, equal = (draws < y[:, None]).sum(1), (draws == y[:, None]).sum(1)
    chance = np.random.default_rng(0).random(len(y))
    return ndtri((below + chance * (equal + 1)) / (draws.shape[1] + 1))
