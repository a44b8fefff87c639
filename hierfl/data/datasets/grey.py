"""The MNIST family: idx files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..readers.idx import read_idx
from .registry import MLP
from .torchvision_layout import Images, Layout, image_set


def _grey(folder: str, train: str, test: str, exchanged: bool = False) -> Callable[[Path], Images]:
    """A reader of idx files.

    Args:
        folder: under the root.
        train, test: how the names of the files begin.
        exchanged: whether images are stored with rows and columns exchanged.
    """

    def read(root: Path) -> Images:
        arrays = []
        for stem in (train, test):
            x = read_idx(root / folder / "raw" / f"{stem}-images-idx3-ubyte", 3)
            y = read_idx(root / folder / "raw" / f"{stem}-labels-idx1-ubyte", 1)
            x = np.ascontiguousarray(x.swapaxes(-1, -2)) if exchanged else x
            arrays += [x[:, None], y.astype(np.int64)]
        return Images(*arrays)

    return read


def _fetch_grey(kind: str) -> Callable[[Any, Path], None]:
    def fetch(sets: Any, root: Path) -> None:
        raw_folder = str(root / kind / "raw")
        for file, md5 in getattr(sets, kind).resources:
            failures = []
            for mirror in getattr(sets, kind).mirrors:
                try:
                    sets.utils.download_and_extract_archive(mirror + file, raw_folder, filename=file, md5=md5)
                    break
                except (RuntimeError, OSError) as error:  # the next one may have it
                    failures.append(str(error))
            else:
                raise RuntimeError(f"{file}: {'; '.join(failures)}")

    return fetch


EMNIST_STEMS = ("emnist-balanced-train", "emnist-balanced-test")


def _fetch_emnist(sets: Any, root: Path) -> None:
    """One archive with all six ways of splitting it, of which one is unpacked."""
    raw_folder = root / "EMNIST" / "raw"
    sets.utils.download_and_extract_archive(sets.EMNIST.url, str(raw_folder), md5=sets.EMNIST.md5)
    for stem in EMNIST_STEMS:
        for what in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            sets.utils.extract_archive(str(raw_folder / "gzip" / f"{stem}-{what}.gz"), str(raw_folder))
    shutil.rmtree(raw_folder / "gzip")


def _idx(folder: str, *stems: str) -> str:
    files = ", ".join(f"{stem}-{what}" for stem in stems for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return f"{folder}/raw/ with {files}"


image_set(
    "mnist", "28x28 grey digits, 10 classes, 70,000 images",
    Layout(
        _grey("MNIST", "train", "t10k"), _fetch_grey("MNIST"), lambda sets: sets.MNIST.mirrors,
        "MNIST", _idx("MNIST", "train", "t10k"), "12 MB",
    ),
    ((0.1307,), (0.3081,)), network=MLP,
)  # fmt: skip
image_set(
    "fashion-mnist", "28x28 grey clothes, 10 classes, 70,000 images",
    Layout(
        _grey("FashionMNIST", "train", "t10k"), _fetch_grey("FashionMNIST"), lambda sets: sets.FashionMNIST.mirrors,
        "FashionMNIST", _idx("FashionMNIST", "train", "t10k"), "31 MB",
    ),
    ((0.2860,), (0.3530,)), network=MLP,
)  # fmt: skip
image_set(
    "emnist", "28x28 grey letters and digits (balanced), 47 classes, 131,600 images",
    Layout(
        _grey("EMNIST", *EMNIST_STEMS, exchanged=True), _fetch_emnist, lambda sets: [sets.EMNIST.url],
        "EMNIST", _idx("EMNIST", *EMNIST_STEMS), "562 MB",
    ),
    ((0.1751,), (0.3332,)), network=MLP, split="dirichlet:0.3", clients=50,
)  # fmt: skip
