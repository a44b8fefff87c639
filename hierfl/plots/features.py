"""Features of a network in the plane."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..natural_order import natural
from .legible import legend_below, short_names
from .registry import figure
from .style import COLOURS, QUIET, axis_for

#: so many classes or clients have a colour each
MOST_COLOURS = 10


def embedding(z: np.ndarray) -> np.ndarray:
    """Features (N, D) in the plane by t-SNE, the same each time: (N, 2)."""
    from sklearn.manifold import TSNE

    return TSNE(perplexity=min(30.0, (len(z) - 1) / 3), init="pca", random_state=0).fit_transform(z)


@figure("features", "Features", "Test data of all clients in the network's last hidden layer.")
def feature_map(places: np.ndarray, labels: np.ndarray, what: str, ax: Any = None) -> Any:
    """Features in the plane (:func:`embedding`), coloured by what they belong to: of more than ten the six commonest.

    Args:
        places: (N, 2).
        labels: (N,), of class or client.
        what: they are.
        ax: where to draw.
    """
    import matplotlib.pyplot as plt

    ax, counts = axis_for(ax), Counter(labels.tolist())
    many = len(counts) > MOST_COLOURS
    shown = sorted((name for name, _ in counts.most_common(len(COLOURS) if many else None)), key=natural)
    colours = COLOURS if many else [plt.get_cmap("tab10")(k) for k in range(MOST_COLOURS)]
    size = float(np.clip(4000 / len(places), 4, 20))
    if many:
        rest = places[~np.isin(labels, shown)]
        label = f"{len(counts) - len(shown):,} others"
        ax.scatter(rest[:, 0], rest[:, 1], s=size, color=QUIET, linewidth=0, alpha=0.3, label=label)
    for name, short_name, colour in zip(shown, short_names(shown), colours, strict=False):
        own = places[labels == name]
        ax.scatter(own[:, 0], own[:, 1], s=size, color=colour, linewidth=0, alpha=0.8, label=short_name)
    ax.set(xticks=[], yticks=[], title=f"Features by {what} (t-SNE)")
    ax.grid(visible=False)
    legend_below(ax)
    for dot in ax.get_legend().legend_handles:
        dot.set_sizes([30])
        dot.set_alpha(1)
    return ax
