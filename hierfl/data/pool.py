"""One data set before it is split among clients: arrays on the host, not yet anybody's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class PooledDataset:
    """One data set, before it is split among clients.

    Attributes:
        name: what to call it.
        x_train, x_test: inputs, (N, *event): uint8 images (channels first) or float32.
        y_train, y_test: int64 labels 0..classes-1, or float32 responses.
        task: "classification" or "regression".
        classes: number of labels; 0 for regression.
        mean, std: constants that standardise the inputs (after division by 255 for uint8), broadcastable to one
            input; None for inputs that are used as they are.
        fine_train, fine_test: subclass of each example, for concept drift.
        client_train, client_test: whose each example is (or of which domain), where the data say so.
        weights: for how many rows each training and then each test example stands, (N,) in float64; None for one each.
        origin: how the data were made, where they are not the published ones.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    task: Task
    classes: int
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    fine_train: np.ndarray | None = None
    fine_test: np.ndarray | None = None
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    origin: str = ""
    weights: np.ndarray | None = None

    @property
    def train_weights(self) -> np.ndarray | None:
        """Weights of the training examples, (n,); None where each counts once."""
        return None if self.weights is None else self.weights[: len(self.y_train)]

    def digest(self) -> str:
        """A fingerprint of the arrays, so that a resumed run notices other data under the same name."""
        h = hashlib.blake2b(digest_size=8)
        for a in (
            self.x_train,
            self.y_train,
            self.x_test,
            self.y_test,
            self.fine_train,
            self.client_train,
            self.weights,
        ):
            if a is not None:
                h.update(str((a.shape, a.dtype.kind)).encode())
                h.update(np.ascontiguousarray(a if a.dtype.kind != "U" else _encoded(a)).tobytes())
        return h.hexdigest()


def _encoded(names: np.ndarray) -> np.ndarray:
    """Text (N,) in UTF-8, of as many bytes each as the longest has: each name is encoded once."""
    distinct, which = np.unique(names, return_inverse=True)
    return np.asarray(np.char.encode(distinct, "utf-8")[which])
