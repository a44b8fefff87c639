"""Mean and standard deviation of rows that have weights."""

from __future__ import annotations

import numpy as np


def weighted_moments(values: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the first axis, in float64.

    Args:
        values: (n, ...).
        weights: of the rows, (n,); None for one each. Whole weights give the moments of rows repeated so often.
    """
    if weights is None:
        return values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)
    mean = np.average(values.astype(np.float64), axis=0, weights=weights)
    return mean, np.sqrt(np.average(np.square(values - mean), axis=0, weights=weights))
