"""MNIST-M: MNIST's digits on photographs.

MNIST-M (Ganin et al., JMLR 2016) is read from its published files where the user has them. Otherwise it is made here,
always the same: MNIST's digits on patches of photographs. It is then other data of the same kind, and the pool's
``origin`` says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files import shown
from ..pool import PooledDataset
from ..readers.contents import read_picture, read_text
from ..readers.limits import check_size
from .generated import GeneratedDataset
from .registry import CNN, DATASETS, DataSet, load, paper_settings

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
#: the published folders, and their lists of "FILE LABEL"
MNIST_M = {
    "train": ("mnist_m/mnist_m_train", "mnist_m/mnist_m_train_labels.txt"),
    "test": ("mnist_m/mnist_m_test", "mnist_m/mnist_m_test_labels.txt"),
}
PHOTOGRAPHS = "BSDS500"


def mnist_m(root: Path, mnist: Callable[[], Arrays]) -> GeneratedDataset:
    """MNIST-M: the published pictures, or |patch - digit| with patches of photographs, as it was made.

    Args:
        root: where data sets lie; photographs of its folder BSDS500, where there is one, otherwise scikit-learn's two.
        mnist: MNIST's arrays, (N, 1, 28, 28) uint8 images and labels; asked only where it is made.

    Raises:
        UserError: for published files that are incomplete.
    """
    if os.path.lexists(root / MNIST_M["train"][1]):
        parts = [_listed(root / folder, root / names) for folder, names in MNIST_M.values()]
        return GeneratedDataset(*parts[0], *parts[1])
    x_train, y_train, x_test, y_test = mnist()
    photographs, which = _photographs(root)
    made = [blended(x, photographs, np.random.default_rng([28, k])) for k, x in enumerate((x_train, x_test))]
    return GeneratedDataset(made[0], y_train, made[1], y_test, f"made from mnist and patches of {which}")


def _listed(folder: Path, names: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pictures (of one size) and labels from a folder and a list of its files."""
    if not names.is_file():
        raise UserError(f"mnist-m is incomplete: no file {names}")
    images: list[np.ndarray] = []
    labels = []
    lines = [line.strip() for line in read_text(names, "mnist-m's list of FILE LABEL").split("\n") if line.strip()]
    for line in lines:
        name, _, label = line.rpartition(" ")
        # A name out of a list must not lead elsewhere.
        plain = name == os.path.basename(name) and (folder / name).is_file()
        if not plain or label not in map(str, range(10)):
            raise UserError(f"mnist-m is incomplete: {names} lists {shown(line)!r}, which is not in {folder}")
        picture = np.moveaxis(read_picture(folder / name), -1, 0)
        if images and picture.shape != images[0].shape:
            raise UserError(f"mnist-m: {folder / name} has another size than those before it")
        if not images:
            check_size(names, len(lines) * picture.nbytes, "all its pictures")
        images.append(picture)
        labels.append(int(label))
    if not images:
        raise UserError(f"mnist-m is incomplete: {names} is empty")
    return np.stack(images), np.array(labels, dtype=np.int64)


def _photographs(root: Path) -> tuple[list[np.ndarray], str]:
    """Photographs (height, width, 3), and what they are."""
    files = sorted((root / PHOTOGRAPHS).rglob("*.jpg")) if (root / PHOTOGRAPHS).is_dir() else []
    if files:
        photographs = []
        for path in files:
            photographs.append(read_picture(path))
            if min(photographs[-1].shape[:2]) < 28:
                raise UserError(f"{path} is smaller than the 28x28 pixels of a digit")
            check_size(root / PHOTOGRAPHS, sum(picture.nbytes for picture in photographs), "all its photographs")
        return photographs, f"{len(files)} photographs of {PHOTOGRAPHS}"
    from sklearn.datasets import load_sample_images

    return list(load_sample_images().images), "scikit-learn's two sample photographs"


def blended(x: np.ndarray, photographs: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """|patch - digit| in each colour, (N, 3, h, w), from grey images (N, 1, h, w) and random patches."""
    n, _, height, width = x.shape
    which = rng.integers(len(photographs), size=n)
    out = np.empty((n, 3, height, width), dtype=np.uint8)
    for k, photograph in enumerate(photographs):
        own = np.flatnonzero(which == k)
        top = rng.integers(photograph.shape[0] - height + 1, size=len(own))
        left = rng.integers(photograph.shape[1] - width + 1, size=len(own))
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (height, width), axis=(0, 1))
        out[own] = windows[top, left]
    return np.abs(out.astype(np.int16) - x).astype(np.uint8)


def _load(root: Path) -> PooledDataset:
    def mnist() -> Arrays:
        pool = load("mnist", root)
        return pool.x_train, pool.y_train, pool.x_test, pool.y_test

    return mnist_m(root, mnist).pool("mnist-m")


DATASETS["mnist-m"] = DataSet(
    "28x28 MNIST on colour photographs (published, or made here), 70,000 images", _load, **paper_settings(CNN)
)
