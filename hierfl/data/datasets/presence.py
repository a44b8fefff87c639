"""Which data sets lie in a folder: looked up, nothing is read or downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from .domains import DIGIT_FIVE, DIGIT_THREE
from .mnist_m import MNIST_M
from .registry import DATASETS
from .torchvision_layout import LAYOUTS, is_begun

#: data sets that are made from others, unless they are there
MADE_FROM = {"digit-five": DIGIT_FIVE, "digit-three": DIGIT_THREE, "mnist-m": ("mnist",)}


def missing_sets(name: str, root: Path) -> list[str]:
    """Names of the data sets that a named one needs and that are not in ``root``; of a file, itself where it is none.

    Args:
        name: a known name, or the path of a file.
        root: the folder where data sets lie.
    """
    if name not in DATASETS:
        return [] if os.path.lexists(name) or os.path.lexists(root / f"{name}.npz") else [name]
    if os.path.lexists(root / f"{name}.npz"):
        return []
    if name == "mnist-m" and os.path.lexists(root / MNIST_M["train"][1]):
        return []
    if name in MADE_FROM:
        return list(dict.fromkeys(lacking for part in MADE_FROM[name] for lacking in missing_sets(part, root)))
    layout = LAYOUTS.get(name)
    if layout is None:
        return []  # embedded, or made
    beside = layout.beside is None or (root / layout.beside).exists()
    return [] if beside and is_begun(root / layout.folder) else [name]
