"""CIFAR's batches and names."""

from __future__ import annotations

import pickletools
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from .cifar_pickle import Machine, Unset, text_of
from .contents import read_bytes
from .limits import reading


def read_pickled(path: Path | str) -> dict[str, Any]:
    """The dictionary in one of CIFAR's files: arrays of whole numbers, lists, text (or bytes, as Python 2 wrote it).

    Raises:
        UserError: for anything that is not that.
    """
    data = read_bytes(path, "one of CIFAR's files")
    with reading(path, "file of CIFAR's"):
        value = Machine(budget=2 * len(data) + 1024).run(pickletools.genops(BytesIO(data)))
        if not isinstance(value, dict):
            raise ValueError("it holds no dictionary")
        return value


def read_batch(path: Path | str, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) uint8 and labels (N,) int64 of a batch.

    Args:
        path: the file.
        labels: what it calls them.

    Raises:
        UserError: for what is no such file.
    """
    content = read_pickled(path)
    with reading(path, "batch of CIFAR's"):
        data, y = content["data"], content[labels]
        x = data.value if isinstance(data, Unset) else None
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3 * 32 * 32:
            raise ValueError("its data are not rows of 3 x 32 x 32 bytes")
        if not isinstance(y, list) or len(y) != len(x) or not all(type(label) is int for label in y):
            raise ValueError(f"its {labels} are not a list of as many whole numbers")
        return x.reshape(-1, 3, 32, 32), np.array(y, dtype=np.int64)


def read_names(path: Path | str, key: str) -> list[str]:
    """The names of the classes, from the file that goes with the batches.

    Raises:
        UserError: for what is no such file.
    """
    content = read_pickled(path)
    with reading(path, "file of CIFAR's names"):
        if not isinstance(content[key], list):
            raise ValueError("its names are no list")
        return [text_of(name) for name in content[key]]
