"""House numbers (SVHN) and the postal service's digits (USPS)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..readers.contents import read_text
from ..readers.limits import reading
from ..readers.matlab_digits import read_matlab_digits
from .registry import CNN, MLP
from .torchvision_layout import Images, Layout, image_set


def _svhn(root: Path) -> Images:
    """Street View house numbers, cropped (Netzer et al., 2011)."""
    return Images(*(a for part in ("train", "test") for a in read_matlab_digits(root / f"SVHN/{part}_32x32.mat")))


def _usps(root: Path) -> Images:
    """The postal service's digits (Hull, 1994)."""
    return Images(*(array for file in ("usps.bz2", "usps.t.bz2") for array in read_usps(root / "USPS" / file)))


def read_usps(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 1, 16, 16) and labels of lines "LABEL 1:VALUE ... 256:VALUE", labels from 1, values from -1 to 1.

    Raises:
        UserError: for anything else.
    """
    rows, labels = [], []
    text = read_text(path, "a file of USPS's", packed=True)
    with reading(path, "file of USPS's"):
        for line in text.splitlines():
            label, *values = line.split()
            labels.append(int(label) - 1)
            rows.append(np.array([value.rpartition(":")[2] for value in values], dtype=np.float32).reshape(16, 16))
        x = np.stack(rows)[:, None]
        if not (np.abs(x) <= 1).all() or not 0 <= min(labels) <= max(labels) <= 9:
            raise ValueError("its values are not from -1 to 1, or its labels not from 1 to 10")
        return ((x + 1) / 2 * 255).astype(np.uint8), np.array(labels, dtype=np.int64)


def _fetch_listed(kind: str) -> Callable[[Any, Path], None]:
    """SVHN and USPS."""

    def fetch(sets: Any, root: Path) -> None:
        for part in ("train", "test"):
            url, file, md5 = getattr(sets, kind).split_list[part]
            sets.utils.download_url(url, str(root / kind), file, md5)

    return fetch


def _listed_urls(kind: str) -> Callable[[Any], list[str]]:
    return lambda sets: [getattr(sets, kind).split_list[part][0] for part in ("train", "test")]


image_set(
    "svhn", "32x32 house numbers in colour, 10 classes, 99,289 images",
    Layout(
        _svhn, _fetch_listed("SVHN"), _listed_urls("SVHN"), "SVHN",
        "SVHN/ with train_32x32.mat and test_32x32.mat", "246 MB",
    ),
    network=CNN,
)  # fmt: skip
image_set(
    "usps",
    "16x16 grey digits, 10 classes, 9,298 images",
    Layout(_usps, _fetch_listed("USPS"), _listed_urls("USPS"), "USPS", "USPS/ with usps.bz2 and usps.t.bz2", "9 MB"),
    network=MLP,
)
