"""The clients' training examples, by class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class ByClass:
    """Positions of the examples of each client's classes in the client's own data, on the host.

    Args:
        labels: of each client's examples, (n_j,).
        classes: C.

    Attributes:
        counts: how many examples of each class each client has, (J, C).
    """

    def __init__(self, labels: Sequence[np.ndarray], classes: int) -> None:
        sizes = np.array([len(y) for y in labels])
        owner = np.repeat(np.arange(len(sizes)), sizes)
        group = owner * classes + np.concatenate(labels)
        order = np.argsort(group, kind="stable")
        self.counts = np.bincount(group, minlength=len(sizes) * classes).reshape(-1, classes)
        self._places = order - (sizes.cumsum() - sizes)[owner[order]]
        ends = self.counts.ravel().cumsum().reshape(-1, classes)
        self._firsts = ends - self.counts

    def places(self, client: int, label: int) -> np.ndarray:
        """The positions of one client's examples of one class, in their order."""
        first = self._firsts[client, label]
        places: np.ndarray = self._places[first : first + self.counts[client, label]]
        return places
