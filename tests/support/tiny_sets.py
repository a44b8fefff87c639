"""Data sets of tiny pictures under the names of the papers' data sets, so that every table can be run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

#: by name: colours, labels, subclasses of each, domains
SETS: dict[str, tuple[int, int, int, tuple[str, ...]]] = {
    "fashion-mnist": (1, 10, 0, ()), "mnist": (1, 10, 0, ()), "emnist": (1, 10, 0, ()), "cifar10": (3, 10, 0, ()),
    "cifar100": (3, 20, 5, ()), "sun397": (3, 3, 50, ()),
    "digit-three": (3, 10, 0, ("mnist", "mnist-m", "synthetic-digits")),
    "digit-five": (3, 10, 0, ("mnist", "mnist-m", "svhn", "synthetic-digits", "usps")),
}  # fmt: skip


def write_sets(root: Path, examples: int = 20_000) -> None:
    """Writes all of them as npz files into a folder."""
    rng = np.random.default_rng(0)
    for name, (colours, labels, fine, domains) in SETS.items():
        arrays: dict[str, np.ndarray] = {}
        for part, n in (("train", examples), ("test", examples // 5)):
            at = np.arange(n)
            arrays[f"x_{part}"] = rng.integers(0, 256, (n, colours, 8, 8), dtype=np.uint8)
            arrays[f"y_{part}"] = at % labels
            if fine:
                arrays[f"fine_{part}"] = at % labels * fine + at // labels % fine
            if domains:
                arrays[f"client_{part}"] = np.array(domains)[at // labels % len(domains)]
        np.savez(root / f"{name}.npz", **arrays)  # type: ignore[arg-type]
