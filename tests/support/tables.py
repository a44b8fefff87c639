"""A small table for formulas."""

from __future__ import annotations

import numpy as np
import pandas as pd


def table(rows: int = 60) -> pd.DataFrame:
    """Numbers, factors and names of clients, some with more than one word."""
    rng = np.random.default_rng(3)
    k = np.arange(rows)
    return pd.DataFrame(
        {
            "y": rng.normal(size=rows), "x": rng.normal(size=rows), "z": rng.uniform(1, 2, rows),
            "g": np.array(["u", "v", "w"])[k % 3], "h": np.array(["a", "b"])[k // 3 % 2],
            "site": np.array([f"s{j}" for j in k % 5]), "odd name": rng.normal(size=rows), "count": k % 4,
        }
    )  # fmt: skip
