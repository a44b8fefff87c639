"""A data set that was made here, or read from the published files."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..arrays import make_pool
from ..pool import PooledDataset


@dataclass(frozen=True)
class GeneratedDataset:
    """uint8 images (N, 3, height, width) and labels (N,), training and test; and how they were come by."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    origin: str = ""

    def pool(self, name: str) -> PooledDataset:
        """The examples as a pool, which records how they were generated."""
        return replace(make_pool(name, self.x_train, self.y_train, self.x_test, self.y_test), origin=self.origin)
