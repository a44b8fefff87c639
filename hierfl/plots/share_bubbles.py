"""How a split spreads the classes over the clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from .style import PERSONAL, axis_for


def share_bubbles(counts: np.ndarray, ax: Any = None) -> Any:
    """A bubble for each client and class, its area the number of examples (pFedVMP, Figure 4).

    Args:
        counts: (J, C).
        ax: where to draw.
    """
    ax = axis_for(ax)
    clients, classes = np.nonzero(counts)
    sizes = counts[clients, classes]
    ax.scatter(clients, classes, s=160 * sizes / max(1, sizes.max(initial=1)), color=PERSONAL, alpha=0.7, linewidth=0)
    ax.set(xlabel="client", ylabel="class", ylim=(-0.7, counts.shape[1] - 0.3))
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.grid(visible=False)
    return ax
