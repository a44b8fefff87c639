"""Tables of many clients."""

from __future__ import annotations

import numpy as np
import pandas as pd


def places(rows: int, clients: int, seed: int = 0) -> pd.DataFrame:
    """Rows of places that all have at least one: two numbers, two categories, a count."""
    rng = np.random.default_rng(seed)
    who = np.sort(np.r_[np.arange(clients), rng.integers(0, clients, rows - clients)])
    x, u = rng.normal(2, 1.5, rows), rng.normal(size=rows)
    y = 3 + 0.7 * x + rng.normal(size=clients)[who] + 0.8 * rng.normal(size=rows)
    words = {"f": np.array(list("abc"))[rng.integers(0, 3, rows)], "g": np.array(list("uv"))[rng.integers(0, 2, rows)]}
    return pd.DataFrame({"y": y, "x": x, "u": u, **words, "k": rng.poisson(2, rows), "site": [f"s{j}" for j in who]})
