"""Sums over all sites' rows that represent what is otherwise read off the pooled table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

#: sums of numbers by name, float64 of any shape; those of several sites add up
NamedSums = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Moments:
    """How many rows, and sums of columns and their squares, around a centre that all sites know. Moments add up.

    Attributes:
        n: rows.
        total, square: (k,), sums of x - c and of its square.
        centre: c, (k,).
    """

    n: float
    total: np.ndarray
    square: np.ndarray
    centre: np.ndarray

    @classmethod
    def from_columns(cls, columns: np.ndarray, centre: np.ndarray | None = None) -> Moments:
        """Returns the sums of rows (n, k)."""
        c = np.zeros(columns.shape[1]) if centre is None else np.asarray(centre, dtype=float)
        gaps = columns - c
        return cls(float(len(columns)), gaps.sum(0), np.square(gaps).sum(0), c)

    @classmethod
    def named(cls, sums: NamedSums, centre: np.ndarray, prefix: str = "") -> Moments:
        """Undoes :meth:`sums`, around the same centre."""
        return cls(float(sums[f"{prefix}n"]), sums[f"{prefix}total"], sums[f"{prefix}square"], centre)

    def sums(self, prefix: str = "") -> dict[str, np.ndarray]:
        """What is sent of it."""
        return {f"{prefix}n": np.array(self.n), f"{prefix}total": self.total, f"{prefix}square": self.square}

    def __add__(self, other: Moments) -> Moments:
        """Adds the sums of the rows of both."""
        return Moments(self.n + other.n, self.total + other.total, self.square + other.square, self.centre)

    @property
    def mean(self) -> np.ndarray:
        """(k,)."""
        return self.centre + self.total / self.n

    @property
    def sd(self) -> np.ndarray:
        """The standard deviations of the population, (k,)."""
        return np.sqrt(np.maximum(0.0, self.square / self.n - np.square(self.total / self.n)))

    @property
    def rms(self) -> np.ndarray:
        """Root mean squares, (k,)."""
        gap = self.total / self.n
        return np.sqrt(np.maximum(0.0, self.square / self.n + 2 * self.centre * gap + np.square(self.centre)))
