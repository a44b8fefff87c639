"""A threshold that the coordinator moves: the column of a comparison with the mean of "all sites"."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch

from hierfl.inference.state import State

from .coordinator import Coordinator

#: of made-up rows: such as are believed
SPREAD = 14.0


def told(site: Coordinator, cut: float, n: float) -> State:
    """Totals by which the mean of the only number is ``cut``, and its standard deviation :data:`SPREAD`."""
    gap = cut - float(site.study.data.centres[0])  # type: ignore[attr-defined]
    of_all = {"n": n, "total": [n * gap], "square": [n * (gap * gap + SPREAD**2)]}
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in of_all.items()}


def gram(site: Coordinator, cut: float, n: float = 2.0) -> np.ndarray | None:
    """X'X of the site's columns as if ``cut`` were the mean of ``n`` rows at all sites; None where it refuses."""
    sent = site.sums([told(site, cut, n)])
    return None if sent is None else sent["gram"].numpy()


def passed(cuts: Iterable[float], grams: Iterable[np.ndarray | None]) -> list[tuple[float, float, np.ndarray]]:
    """Single patients between two neighbouring thresholds: the two, and the row's own part of X'X, (p,)."""
    seen = [(cut, own) for cut, own in zip(cuts, grams, strict=True) if own is not None]
    return [
        (low, high, gram_low[1] - gram_high[1])
        for (low, gram_low), (high, gram_high) in pairwise(seen)
        if abs(gram_low[0, 1] - gram_high[0, 1] - 1) < 1e-9
    ]
