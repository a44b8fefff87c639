"""Ranks of a simulation-based calibration: how far their ECDF is from that of uniform ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np

from .saving import save
from .style import GLOBAL, INK, PERSONAL, QUIET, styled

#: quantities that a picture shows
MAX_PANELS = 24
#: panels beside each other
ACROSS = 4


def ecdf_differences(
    path: Path, names: Sequence[str], points: np.ndarray, ecdfs: np.ndarray, band: tuple[np.ndarray, np.ndarray],
    off: Sequence[bool], title: str,
) -> Path:  # fmt: skip
    """One panel for each quantity: ECDF of its ranks less the diagonal, within the band of uniform ranks.

    Args:
        path: of the picture.
        names: of the quantities.
        points: where the ECDFs are known, (K,) in (0, 1).
        ecdfs: (quantities, K).
        band: between which an ECDF of uniform ranks is everywhere with a probability of 95 %, (K,) each.
        off: of which quantities the ranks are not uniform.
        title: of the picture.
    """
    order = sorted(range(len(names)), key=lambda k: not off[k])[:MAX_PANELS]
    order = sorted(order)
    lines = -(-len(order) // ACROSS)
    across = min(ACROSS, len(order))
    left_out = len(names) - len(order)
    z = np.concatenate([[0.0], points, [1.0]])
    low, high = (np.concatenate([[0.0], edge - points, [0.0]]) for edge in band)
    most = 1.15 * max(high.max(), -low.min(), np.abs(ecdfs - points).max())
    with styled() as plt:
        size = (max(4.2, 2.3 * across), 0.7 + 1.9 * lines)
        figure, axes = plt.subplots(
            lines, across, figsize=size, layout="constrained", squeeze=False, sharex=True, sharey=True
        )
        for ax, k in zip(axes.flat, order, strict=False):
            ax.fill_between(z, low, high, color=QUIET, alpha=0.3, linewidth=0, label="95 % of uniform ranks")
            ax.axhline(0, color=QUIET, lw=0.8)
            gap = np.concatenate([[0.0], ecdfs[k] - points, [0.0]])
            ax.plot(z, gap, color=GLOBAL if off[k] else PERSONAL, lw=1.4)
            ax.set(xlim=(0, 1), ylim=(-most, most))
            ax.set_title(fill(f"{names[k]}, off" if off[k] else names[k], 28), fontsize=9)
        for ax in axes.flat[len(order) :]:
            ax.set_axis_off()
        for ax in axes.flat[max(0, len(order) - across) : len(order)]:  # the lowest panel of each column
            ax.set_xlabel("rank / draws")
            ax.tick_params(labelbottom=True)
        for ax in axes[:, 0]:
            ax.set_ylabel("ECDF - rank")
        more = f"; {left_out} more are not shown" if left_out else ""
        figure.suptitle(title + more, x=0.01, ha="left", fontsize=10, color=INK)
        return save(plt, figure, path)
