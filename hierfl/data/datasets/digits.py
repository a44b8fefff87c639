"""Scikit-learn's embedded digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..arrays import channel_constants
from ..pool import PooledDataset
from .registry import DATASETS, DataSet


def load_digits(root: Path) -> PooledDataset:
    """Scikit-learn's embedded 8x8 digits: 1,797 images, four fifths for training, the same ones each time."""
    from sklearn.datasets import load_digits as embedded
    from sklearn.model_selection import train_test_split

    x, y = embedded(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y.astype(np.int64), test_size=0.2, random_state=0, stratify=y
    )
    return PooledDataset("digits", x_train, y_train, x_test, y_test, "classification", 10, *channel_constants(x_train))


DATASETS["digits"] = DataSet(
    "8x8 grey digits, 10 classes, 1,797 images, embedded (scikit-learn)", load_digits,
    clients=20, split="label-skew:5", rounds=30, participation=1.0, evaluate_every=1, network="mlp:64",
)  # fmt: skip
