"""Posterior-predictive checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtri

from .distributions import POINTS, density_at
from .forest import INTERVAL
from .posterior_numbers import Posterior, clients_by_size
from .registry import Drawing, figure, once
from .style import GLOBAL, INK, MAX_NAMED_CLIENTS, PERSONAL, QUIET, axis_for

#: draws of the posterior predictive that a check shows
MAX_PREDICTIVE_DRAWS = 50
#: rows that a picture of residuals shows
MAX_ROWS = 2000
#: bins of whole numbers, such values that have a tick of their own, and ticks
MOST_STEPS, MOST_VALUES, MOST_TICKS = 40, 20, 11


@figure(
    "predictive-check", "Posterior-predictive checks",
    "Training data, which the models have seen: a fit that cannot even draw these is wrong; one that can may still "
    "be.",
    place=1, source="posterior", order=6,
    needs=lambda posterior: once(posterior.predicted, "predictive-check", data=posterior.data),
)  # fmt: skip
def predictive_check(data: Any, ax: Any = None) -> Any:
    """All training data beside draws of the posterior predictive, and their mean; the axis.

    Whole numbers have a step for each, or for each of at most :data:`MOST_STEPS` bins; others have smoothed densities.
    """
    ax, observed = axis_for(ax), data.observed_data["y"]
    y = observed.values.ravel()
    new = data.posterior_predictive["y"].stack(sample=("chain", "draw")).transpose("sample", ...).values
    picked = np.linspace(0, len(new) - 1, min(MAX_PREDICTIVE_DRAWS, len(new))).round().astype(int)
    new = new.reshape(len(new), -1)[np.unique(picked)]
    whole = np.array_equal(y, np.round(y))
    curves, style = (_steps(y, new), "steps-post") if whole else (_smooth(y, new), "default")
    (at, of_data), of_draws = curves[0], [height for _, height in curves[1:]]
    for k, height in enumerate(of_draws):
        name = None if k else "posterior predictive draws"
        ax.plot(at, height, color=PERSONAL, alpha=0.3, lw=0.7, drawstyle=style, label=name)
    ax.plot(at, np.mean(of_draws, 0), color=GLOBAL, lw=1.4, ls="--", drawstyle=style, label="their mean")
    ax.plot(at, of_data, color=INK, lw=1.4, drawstyle=style, label="data")
    ax.set(xlabel=observed.attrs.get("long_name", "y"), yticks=[], title="Posterior-predictive check, training data")
    ax.set_ylim(0, ax.get_ylim()[1] * 1.35)  # (room for the legend)
    if whole and len(values := np.unique(y).astype(int).tolist()) <= MOST_VALUES:
        some = values[:1]
        for v in values[1:]:
            some += [v] * (v - some[-1] >= (values[-1] - values[0]) / MOST_TICKS)
        ax.set_xticks(some, list(map(str, some)))
    ax.legend(loc="upper right", fontsize=8)
    return ax


def _smooth(y: np.ndarray, new: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Densities of the data and of each draw (S, N) on the same points."""
    pooled = np.concatenate([y, new.ravel()])
    low, high = np.quantile(pooled[np.isfinite(pooled)], [0.001, 0.999])
    at = np.linspace(min(low, y.min()), max(high, y.max()), POINTS)
    return [(at, density_at(row, at)) for row in (y, *new)]


def _steps(y: np.ndarray, new: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Shares of whole numbers among the data and among each draw (S, N), as steps."""
    low, high = int(min(y.min(), np.quantile(new, 0.001))), int(max(y.max(), np.quantile(new, 0.999)))
    width = max(1, -(-(high - low + 1) // MOST_STEPS))
    edges = np.arange(low, high + width + 1, width) - 0.5
    shares = [np.histogram(row, edges)[0] / len(row) for row in (y, *new)]
    return [(edges, np.append(share, share[-1])) for share in shares]


@figure(
    "predictive-check-clients", "Posterior-predictive checks",
    "Of each client the mean of its training data (of labels: the share of its commonest one), beside what its own "
    "model draws.",
    place=2, source="posterior", order=7,
    needs=lambda posterior: once(posterior.predicted, "predictive-check-clients", data=posterior.data),
)  # fmt: skip
def predictive_check_by_client(data: Any, ax: Any = None, most: int = MAX_NAMED_CLIENTS) -> Any:
    """Of each client a mean of its data beside what its model's draws give, with their central 90 %; the axis.

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
    for row, name in enumerate(names):
        mine = owner == name
        if not mine.any():
            continue
        own, drawn = y[mine], new[mine]
        if labels:
            common = np.bincount(own).argmax()
            own, drawn = own == common, drawn == common
        low, high = np.quantile(drawn.mean(0), [0.5 - INTERVAL / 2, 0.5 + INTERVAL / 2])
        outside += bool(own.mean() < low or own.mean() > high)
        ax.hlines(row, low, high, color=PERSONAL, lw=3, alpha=0.5, label="models' draws, 90 %" if not row else None)
        ax.plot(own.mean(), row, "o", color=INK, ms=4, label="data" if not row else None)
    ax.set_yticks(range(len(names)), names, fontsize=9 if len(names) <= 15 else 6)
    ax.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of the commonest label" if labels else "mean of y")
    ax.set_title(f"Client by client: {outside} of {len(names)} outside")
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=2, fontsize=8)
    return ax


def _responses(posterior: Posterior) -> Iterator[Drawing]:
    """Of predictions of a response that is no label."""
    if posterior.predicted and not np.issubdtype(posterior.data.observed_data["y"].dtype, np.integer):
        yield "residuals", {"data": posterior.data}


@figure(
    "residuals", "Posterior-predictive checks",
    "Each row's place among what its own model draws for it, as a normal's quantile (of equal numbers a random place: "
    "randomised quantile residuals). Whatever the response, they are standard normal where the model is right, at "
    "every fitted value; a trend or a funnel says where it is not.",
    place=3, source="posterior", order=8, needs=_responses,
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
    ax.legend(loc="lower right", fontsize=8)
    return ax


def quantile_residuals(y: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Normal quantiles of the places of y (n,) among draws (n, D); equal ones are placed at random, always the same."""
    below, equal = (draws < y[:, None]).sum(1), (draws == y[:, None]).sum(1)
    chance = np.random.default_rng(0).random(len(y))
    return ndtri((below + chance * (equal + 1)) / (draws.shape[1] + 1))
