"""Posterior-predictive checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtri

from .forest import INTERVAL
from .posterior_numbers import Posterior, clients_by_size, quietly
from .registry import Drawing, figure, once
from .style import GLOBAL, INK, MAX_NAMED_CLIENTS, PERSONAL, QUIET, axis_for

#: draws of the posterior predictive that a check shows
MAX_PREDICTIVE_DRAWS = 50
#: rows that a picture of residuals shows
MAX_ROWS = 2000
#: numbers on the axis of whole ones
MOST_TICKS = 11


@figure(
    "predictive-check", "Posterior-predictive checks",
    "Training data, which the models have seen: a fit that cannot even draw these is wrong; one that can may still "
    "be.",
    place=1, source="posterior", order=6,
    needs=lambda posterior: once(posterior.predicted, "predictive-check", data=posterior.data),
)  # fmt: skip
def predictive_check(data: Any, ax: Any = None) -> Any:
    """All training data beside draws of the posterior predictive (``az.plot_ppc``); the axis."""
    ax = axis_for(ax)
    draws = data.posterior_predictive.sizes["chain"] * data.posterior_predictive.sizes["draw"]
    values = []
    if np.array_equal(y := data.observed_data["y"].values, np.round(y)):  # (of whole numbers no density is smoothed)
        data, values = _whole(data), np.unique(y).astype(int).tolist()
    with quietly() as az:
        az.plot_ppc(data, num_pp_samples=min(MAX_PREDICTIVE_DRAWS, draws), random_seed=0, ax=ax, textsize=9,
                    colors=[PERSONAL, INK, GLOBAL])  # fmt: skip
    called = data.observed_data["y"].attrs.get("long_name", "y")
    ax.set(xlabel=called, title="Posterior-predictive check, training data")
    ax.set_ylim(top=ax.get_ylim()[1] * 1.35)  # (room for the legend)
    if 0 < len(values) <= 20:  # (a bar begins at its number)
        some = values[:1]
        for v in values[1:]:
            some += [v] * (v - some[-1] >= (values[-1] - values[0]) / MOST_TICKS)
        ax.set_xticks([v + 0.5 for v in some], [str(v) for v in some])
    ax.legend(loc="upper right", fontsize=8)
    return ax


def _whole(data: Any) -> Any:
    """The responses as whole numbers."""
    data = data.copy()
    for group in ("observed_data", "posterior_predictive"):
        data[group]["y"] = data[group]["y"].round().astype(int)
    return data


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
