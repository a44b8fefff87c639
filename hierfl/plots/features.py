"""Features of a network in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import figure
from .style import axis_for


def embedding(z: np.ndarray) -> np.ndarray:
    """Features (N, D) in the plane by t-SNE, the same each time: (N, 2)."""
    from sklearn.manifold import TSNE

    return TSNE(perplexity=min(30.0, (len(z) - 1) / 3), init="pca", random_state=0).fit_transform(z)


@figure("features", "Features", "Test data of all clients in the network's last hidden layer.")
def feature_map(places: np.ndarray, labels: np.ndarray, what: str, ax: Any = None) -> Any:
    """Features in the plane (:func:`embedding`), coloured by what they belong to.

    Args:
        places: (N, 2).
        labels: (N,), of class or client.
        what: they are.
        ax: where to draw.
    """
    import matplotlib.pyplot as plt

    ax, names = axis_for(ax), np.unique(labels)
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
