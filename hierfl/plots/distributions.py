"""Parts of figures that show draws: densities, intervals, ranks. Drawn by Matplotlib, whatever ArviZ's version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde, rankdata

from .legible import name_rows

#: points of a density's curve
POINTS = 200
#: bars of ranks
BARS = 20


def density_curve(draws: np.ndarray, bounded: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Points and the smoothed density of finite draws there; empty where all are alike.

    Args:
        draws: numbers.
        bounded: whether the curve ends at the smallest and the largest, what is beyond being mirrored there (of
            numbers that cannot be negative, say); else it ends where it is next to nothing.
    """
    draws = np.asarray(draws, float).ravel()
    draws = draws[np.isfinite(draws)]
    if len(draws) < 2 or np.ptp(draws) <= 1e-12 * np.abs(draws).max():
        return np.zeros(0), np.zeros(0)
    smooth, low, high = gaussian_kde(draws), draws.min(), draws.max()
    if not bounded:
        beyond = 3 * float(smooth.covariance[0, 0]) ** 0.5
        at = np.linspace(low - beyond, high + beyond, POINTS)
        return at, smooth(at)
    at = np.linspace(low, high, POINTS)
    return at, sum(smooth(point) for point in (at, 2 * low - at, 2 * high - at))


def density_at(draws: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A smoothed density of draws at points; zero where all are alike."""
    return gaussian_kde(draws)(at) if np.ptp(draws) > 1e-12 * np.abs(draws).max() else np.zeros(len(at))


def highest_density(draws: np.ndarray, share: float) -> tuple[float, float]:
    """The shortest interval that has this share of the draws."""
    ordered = np.sort(np.asarray(draws, float).ravel())
    inside = max(1, int(np.floor(share * len(ordered))))
    if inside >= len(ordered):
        return float(ordered[0]), float(ordered[-1])
    first = int(np.argmin(ordered[inside:] - ordered[:-inside]))
    return float(ordered[first]), float(ordered[first + inside])


def intervals(rows: Mapping[str, np.ndarray], share: float, colour: str, ax: Any) -> None:
    """A line of each row's highest-density interval, a thick one of its central half, and its median; first on top."""
    for row, draws in enumerate(rows.values()):
        low, high = highest_density(draws, share)
        lower, middle, upper = np.quantile(np.asarray(draws, float), [0.25, 0.5, 0.75])
        ax.hlines(row, low, high, color=colour, lw=1.4)
        ax.hlines(row, lower, upper, color=colour, lw=3.5)
        ax.plot(middle, row, "o", color=colour, ms=5, markerfacecolor="white")
    name_rows(ax, list(rows), most=max(map(len, rows)))


def rank_bars(chains: np.ndarray, colours: Sequence[str], ax: Any) -> None:
    """Draws for each chain (C, D) a histogram of its draws' ranks among all, above its own line."""
    ranks = rankdata(chains).reshape(chains.shape)
    edges = np.linspace(0.5, chains.size + 0.5, min(BARS, max(2, chains.shape[1] // 5)) + 1)
    level = chains.shape[1] / (len(edges) - 1)
    for chain, (own, colour) in enumerate(zip(ranks, colours, strict=True)):
        heights = np.histogram(own, edges)[0] / (2.2 * level)  # a bar at the level is just below a half
        ax.bar(edges[:-1], heights, np.diff(edges), chain, align="edge", color=colour, edgecolor="white", lw=0.5)
        ax.axhline(chain + 1 / 2.2, color="white", lw=1)
        ax.axhline(chain + 1 / 2.2, color=colour, lw=1, ls="--")
    ax.set_yticks(range(len(chains)), list(range(len(chains))))
