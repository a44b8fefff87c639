"""A response that a mixed model can have, with its log density by SciPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

#: log p(y | eta) of rows (n, ...), the family's own numbers given
LogDensity = Callable[[pd.DataFrame, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A response.

    Attributes:
        family: its name.
        own: its own numbers as a fit searches them, true ones.
        draw: (rng, table with eta and x) to columns of the response.
        log_density: (table, eta (n, ...), own) to (n, ...).
        response: of the formula.
        how: more arguments of a mixed model.
        intercept: the true one.
        known: columns that follow from the whole table.
    """

    family: str
    own: tuple[float, ...]
    draw: Callable[[np.random.Generator, np.ndarray], Mapping[str, np.ndarray]]
    log_density: LogDensity
    response: str = "y"
    how: Mapping[str, Any] = field(default_factory=dict)
    intercept: float = 0.5
    known: Callable[[pd.DataFrame], Mapping[str, float]] = lambda df: {}

    @property
    def formula(self) -> str:
        return f"{self.response} ~ 1 + x + (1 | site)"

    def table(
        self, places: int = 30, seed: int = 1, rows: tuple[int, int] = (2, 60), slope: float = 0.7, sd: float = 0.8
    ) -> pd.DataFrame:
        """So many rows a place, a random intercept of standard deviation sd; columns y, x, site, effect and more."""
        rng = np.random.default_rng(seed)
        who = np.repeat(np.arange(places), rng.integers(rows[0], rows[1] + 1, places))
        x, effect = rng.normal(size=len(who)), sd * rng.normal(size=places)
        eta = self.intercept + slope * x + effect[who]
        site = [f"s{j:03d}" for j in who]
        return self.complete(pd.DataFrame({**self.draw(rng, eta), "x": x, "site": site, "effect": effect[who]}))

    def complete(self, df: pd.DataFrame) -> pd.DataFrame:
        """With the columns that follow from all of it."""
        return df.assign(**self.known(df))


def column(y: pd.Series, eta: np.ndarray) -> np.ndarray:
    """Beside eta (n, ...)."""
    return y.to_numpy(dtype=float).reshape(-1, *[1] * (eta.ndim - 1))
