"""What X'X, X'y and y'y say of single rows, of a gaussian response.

Rows are (1, x, y) and x is known to have one digit after the point, as y has. Ten sums of n rows are n, sum x, sum x^2,
sum y, sum xy and sum y^2. The attack looks for rows with these sums by moving pairs of x and y until the sums agree: it
finds some such rows, and they need not be the site's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.int64]
TRIES = 6


def table(n: int, seed: int) -> tuple[Grid, Grid]:
    """x and y in tenths, (n,) each."""
    rng = np.random.default_rng([seed, n, 3])
    x = np.round(10 * rng.normal(60, 12, n).clip(20, 99)).astype(np.int64)
    return x, np.round(10 * (5 + 0.05 * x + rng.normal(size=n))).astype(np.int64)


def sums(x: Grid, y: Grid) -> NDArray[np.float64]:
    """sum x, x^2, y, xy, y^2."""
    return np.array([x.sum(), (x * x).sum(), y.sum(), (x * y).sum(), (y * y).sum()], dtype=float)


def consistent(wanted: NDArray[np.float64], n: int, seed: int) -> tuple[Grid, Grid]:
    """Rows with nearly these sums: moments matched, rounded, and improved by single tenths."""
    rng = np.random.default_rng(seed)
    mean = wanted[[0, 2]] / n
    cov = np.array([[wanted[1], wanted[3]], [wanted[3], wanted[4]]]) / n - np.outer(mean, mean)
    z = rng.normal(size=(n, 2))
    z -= z.mean(0)
    z = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / n)).T
    rows = np.round(mean + z @ np.linalg.cholesky(cov + 1e-9 * np.eye(2)).T).astype(np.int64)
    x, y = rows.T
    scale = np.maximum(np.abs(wanted), 1)
    for _ in range(3000):
        away = (sums(x, y) - wanted) / scale
        if not away.any():
            break
        i, k, step = rng.integers(n), rng.integers(2), rng.choice([-1, 1])
        x2, y2 = x.copy(), y.copy()
        (x2, y2)[k][i] += step
        better = (sums(x2, y2) - wanted) / scale
        if better @ better <= away @ away:
            x, y = x2, y2
    return x, y


def share(n: int, seed: int) -> dict[str, float]:
    """Rows recovered, of several candidates the best: more than an attacker knows."""
    x, y = table(n, seed)
    truth = set(zip(x.tolist(), y.tolist(), strict=True))
    best = 0.0
    for attempt in range(TRIES):
        columns = consistent(sums(x, y), n, attempt)
        best = max(best, len(truth & set(zip(*(v.tolist() for v in columns), strict=True))) / n)
    return {"recovered": best, "guess": 0.0}
