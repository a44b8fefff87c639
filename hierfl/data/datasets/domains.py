"""Federations of domains: several sets of digits as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..arrays import make_pool
from ..pool import PooledDataset
from .registry import BN_CNN, DATASETS, DataSet, load

DIGIT_FIVE = ("mnist", "svhn", "usps", "synthetic-digits", "mnist-m")
DIGIT_THREE = ("mnist", "mnist-m", "synthetic-digits")


def resized(x: np.ndarray, side: int = 28) -> np.ndarray:
    """uint8 images (N, 1 or 3, h, w) as (N, 3, side, side): bilinear, without aliasing; grey in all colours."""
    import torch
    from torch.nn.functional import interpolate

    out = np.empty((len(x), 3, side, side), dtype=np.uint8)
    for first in range(0, len(x), 5000):
        part = x[first : first + 5000]
        if part.shape[2:] != (side, side):
            floats = torch.as_tensor(part).float()
            part = interpolate(floats, (side, side), mode="bilinear", antialias=True).round().clamp(0, 255).numpy()
        out[first : first + 5000] = part  # one channel becomes three
    return out


def domains(name: str, parts: Sequence[str]) -> Callable[[Path], PooledDataset]:
    """A loader of several sets of digits as domains of one."""

    def read(root: Path) -> PooledDataset:
        pools = [load(part, root) for part in parts]
        x_train, x_test = (
            np.concatenate([resized(x) for x in xs]) for xs in ([p.x_train for p in pools], [p.x_test for p in pools])
        )
        y_train, y_test = (np.concatenate(ys) for ys in ([p.y_train for p in pools], [p.y_test for p in pools]))
        train, test = (
            np.repeat(np.array(parts), [len(y) for y in ys])
            for ys in ([p.y_train for p in pools], [p.y_test for p in pools])
        )
        pool = make_pool(name, x_train, y_train, x_test, y_test, client_train=train, client_test=test)
        origins = [f"{p.name} {p.origin}" for p in pools if p.origin]
        return replace(pool, origin="; ".join(origins))

    return read


DATASETS["digit-five"] = DataSet(
    "28x28 colour digits of five domains: " + ", ".join(DIGIT_FIVE), domains("digit-five", DIGIT_FIVE),
    clients=5, split="domains:7291", rounds=50, participation=1.0, evaluate_every=10, network=BN_CNN,
)  # fmt: skip
DATASETS["digit-three"] = DataSet(
    "three of them, which need MNIST alone: " + ", ".join(DIGIT_THREE), domains("digit-three", DIGIT_THREE),
    clients=3, split="domains:1500", rounds=20, participation=1.0, evaluate_every=10, network=BN_CNN,
)  # fmt: skip
