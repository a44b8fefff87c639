"""Image sets as they are published, with random pictures."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import torchvision

from hierfl.data.datasets.cifar import CIFAR100

RNG = np.random.default_rng(0)


def idx(path: Path, array: np.ndarray) -> None:
    """The MNIST family's format: magic number, sizes, bytes; big-endian."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def mnist_like(root: Path, folder: str, stems: tuple[str, str]) -> dict[str, np.ndarray]:
    """A set of the MNIST family, training and test: its arrays."""
    arrays = {}
    for part, stem, n in zip(("train", "test"), stems, (30, 20), strict=True):
        x, y = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8), np.arange(n) % 10
        idx(root / folder / "raw" / f"{stem}-images-idx3-ubyte", x)
        idx(root / folder / "raw" / f"{stem}-labels-idx1-ubyte", y)
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    return arrays


def cifar_like(kind: str, root: Path) -> np.ndarray:
    """Tiny batches of CIFAR; their images, training and test."""
    sets = getattr(torchvision.datasets, kind)
    folder = root / sets.base_folder
    folder.mkdir(parents=True)
    images, every = [], sorted(name for names in CIFAR100.values() for name in names)

    def dump(name: str, content: dict) -> None:
        (folder / name).write_bytes(pickle.dumps(content))

    for attribute in ("train_list", "test_list"):
        for name, _ in getattr(sets, attribute):
            n = 200 if kind == "CIFAR100" else 20
            x = RNG.integers(0, 256, (n, 3 * 32 * 32), dtype=np.uint8)
            images.append(x)
            labels = (
                {"fine_labels": [k % 100 for k in range(n)]}
                if kind == "CIFAR100"
                else {"labels": [k % 10 for k in range(n)]}
            )
            dump(name, {"data": x, **labels})
    names = {sets.meta["key"]: every if kind == "CIFAR100" else [str(k) for k in range(10)]}
    dump(sets.meta["filename"], names)
    return np.concatenate(images)
