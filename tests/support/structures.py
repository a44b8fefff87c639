"""Simulations with known truth of structures and responses of mixed models, and the calls that fit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

Random = np.random.Generator


@dataclass(frozen=True)
class Cell:
    """What is simulated and fitted.

    Attributes:
        name: of the cell.
        formula: of the model.
        simulate: the table, from random numbers.
        truth: true value of each effect in the summary's table.
        how: more arguments of a mixed model.
    """

    name: str
    formula: str
    simulate: Callable[[Random], pd.DataFrame]
    truth: Mapping[str, float]
    how: Mapping[str, Any] = field(default_factory=dict)

    def table(self, seed: int) -> pd.DataFrame:
        """Of a replicate."""
        return self.simulate(np.random.default_rng([seed, 52]))


def effects(rng: Random, sd: float, names: np.ndarray) -> np.ndarray:
    """Normal effects of groups, a value for each row."""
    _, at = np.unique(names, return_inverse=True)
    return sd * rng.normal(size=at.max() + 1)[at]


def rows(sites: int, each: int) -> pd.DataFrame:
    """Columns site, a name for each of ``sites`` sites, and x = 0; ``each`` rows at a site."""
    site = np.repeat([f"s{k:02d}" for k in range(sites)], each)
    return pd.DataFrame({"site": site, "x": 0.0})


def one_level(rng: Random) -> pd.DataFrame:
    """y = 1 + x / 2 + site + noise."""
    df = rows(12, 8).assign(x=rng.normal(size=96))
    return df.assign(y=1 + 0.5 * df.x + effects(rng, 0.8, df.site.to_numpy()) + rng.normal(size=len(df)))


CELLS = [
    Cell(
        "gaussian", "y ~ x + (1 | site)", one_level,
        {"Intercept": 1.0, "x": 0.5, "sd(Intercept)": 0.8, "sd(residual)": 1.0},
    ),
]  # fmt: skip
