"""A table with a curve, of which mgcv says in R what tests compare with."""

from __future__ import annotations

import numpy as np
import pandas as pd


def waves() -> pd.DataFrame:
    """Eight sites of thirty rows: a sine of x with a trend, z, and an intercept of each site."""
    rng = np.random.default_rng(3)
    site = np.repeat(np.arange(8), 30)
    x, z = rng.uniform(0, 10, 240).round(3), rng.normal(size=240).round(3)
    y = np.sin(x) + 0.3 * x + 0.5 * z + rng.normal(0, 0.7, 8)[site] + rng.normal(0, 0.4, 240)
    return pd.DataFrame({"site": [f"s{k}" for k in site], "x": x, "z": z, "y": y.round(4)})
