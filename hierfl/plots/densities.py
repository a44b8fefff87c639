"""Distributions over clients, by round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .distributions import density_curve
from .legible import legend_below
from .registry import Drawing, figure
from .style import PERSONAL, axis_for, log_axis
from .tables import RunTables

if TYPE_CHECKING:
    import pandas as pd


#: rounds that a picture of densities shows; clients that it needs
MAX_DENSITY_ROUNDS, MIN_DENSITY_CLIENTS = 4, 8


def _densities(run: RunTables, column: str) -> Iterator[Drawing]:
    history = run.history
    if history is None or column not in history:
        return
    if any(spread_out(part[column].to_numpy(float)) for _, part in history.groupby("round")):
        yield f"density-{column}", {"history": history, "column": column}


@figure(
    "density-deviation", "Over rounds",
    "Mean squared difference between every client's model and the population's mean, in some rounds (pFedVEM, Figure "
    "11).",
    position=3, source="run", needs=lambda run: _densities(run, "deviation"), order=10,
)  # fmt: skip
@figure(
    "density-tau", "Over rounds",
    "Each client's share in the sum of all confidences tau_j, in some rounds (pFedVEM, Figure 10).",
    position=3, source="run", needs=lambda run: _densities(run, "tau"), order=9,
)  # fmt: skip
def densities(history: pd.DataFrame, column: str, ax: Any = None) -> Any:
    """Distribution over clients of what a method has of them, in some rounds from first to last.

    pFedVEM's Figures 10 (tau: shown as confidence ratios, tau_j over the sum of all) and 11 (deviation).

    Args:
        history: columns round, client and this one.
        column: of the history.
        ax: where to draw.
    """
    ax = axis_for(ax)
    values = {number: part[column].to_numpy(float) for number, part in history.groupby("round")}
    if column == "tau":
        values = {number: v / v.sum() for number, v in values.items()}
    rounds = [number for number, v in values.items() if spread_out(v)]
    if not rounds:
        raise UserError(f"{column} is the same for all clients, or of too few, in every round")
    picked = sorted(
        {rounds[k] for k in np.linspace(0, len(rounds) - 1, min(MAX_DENSITY_ROUNDS, len(rounds))).round().astype(int)}
    )
    # Of positive numbers the density of their logarithm: it ends nowhere, and rounds of other sizes are as wide.
    positive = all((values[number][np.isfinite(values[number])] > 0).all() for number in picked)
    for k, number in enumerate(picked):
        shade = 1.0 if len(picked) == 1 else 0.3 + 0.7 * k / (len(picked) - 1)
        x, height = density_curve(np.log10(values[number]) if positive else values[number])
        ax.plot(10**x if positive else x, height, color=PERSONAL, alpha=shade, lw=1.6, label=f"round {number}")
    if positive:
        log_axis(ax)
    names = {"tau": "confidence ratio $\\tau_j / \\Sigma \\tau$", "deviation": "deviation $|w_j - w|^2 / d$"}
    title = {"tau": "Confidence in the clients", "deviation": "How far clients' models deviate"}.get(column, column)
    ax.set(xlabel=names.get(column, column), yticks=[], ylim=(0, None), title=f"{title}, by round")
    ax.set_ylabel("density over clients" + ", of the logarithm" * positive)
    legend_below(ax)
    return ax


def spread_out(values: np.ndarray) -> bool:
    """Whether there is a density to see."""
    good = values[np.isfinite(values)]
    return len(good) >= MIN_DENSITY_CLIENTS and np.ptp(good) > 1e-6 * np.abs(good).max()
