"""How a split spreads the classes over the clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from .style import PERSONAL, axis_for

#: clients that have bubbles
MOST_BUBBLES = 100


def share_bubbles(counts: np.ndarray, ax: Any = None) -> Any:
    """A bubble for each client and class, its area the number of examples (pFedVMP, Figure 4); of many clients a map.

    Args:
        counts: (J, C).
        ax: where to draw.
    """
    ax = axis_for(ax)
    J, C = counts.shape
    if J > MOST_BUBBLES:
        ax.imshow(counts.T, aspect="auto", origin="lower", cmap="Blues", vmin=0, interpolation="nearest")
        ax.set_title("The darker, the more examples")
    else:
        clients, classes = np.nonzero(counts)
        sizes = counts[clients, classes] / max(1, counts.max(initial=1))
        ax.scatter(clients, classes, s=sizes * 160 * min(1, 30 / J), color=PERSONAL, alpha=0.7, linewidth=0)
        ax.set(xlim=(-0.7, J - 0.3), ylim=(-0.7, C - 0.3))
    ax.set(xlabel="client", ylabel="class")
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_locator().set_params(integer=True)
    ax.grid(visible=False)
    return ax
