"""The named data sets: what each is, where it comes from, and what a run on it takes where nothing is said.

A set is registered by the file of its family in this room: ``DATASETS["digits"] = DataSet(...)``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...files import shown
from ..npz import load_npz
from ..pool import PooledDataset
from ..readers.safe_files import located

#: networks of the papers
MLP, CNN, DEEP_CNN, BN_CNN = "mlp:100", "cnn:16,32:120,84", "convnet:32,64,128,256,100", "bncnn:64,64,128:2048,512"


@dataclass(frozen=True)
class DataSet:
    """A data set that has a name, with the settings a run gets when none are given."""

    about: str
    load: Callable[[Path], PooledDataset]
    clients: int
    split: str
    rounds: int
    participation: float
    evaluate_every: int
    network: str
    quorum: int = 1
    noise: float = 1.0
    #: clients in one plate, where rows are so short that there should be many; 0 for what suits the device
    chunk: int = 0
    #: data that are generated for every seed of a run
    made: Callable[[int], PooledDataset] | None = None
    #: the usual constants of its images scaled to [0, 1]: each channel's mean, and standard deviation
    constants: tuple[tuple[float, ...], tuple[float, ...]] | None = None


#: every data set that has a name, in the order in which it is listed
DATASETS: dict[str, DataSet] = {}


def paper_settings(network: str, split: str = "label-skew:5", clients: int = 100) -> dict[str, Any]:
    """How pFedVEM uses an image set: 100 rounds, a tenth of the clients reports, two at the least."""
    return {
        "clients": clients, "split": split, "rounds": 100, "participation": 0.1, "evaluate_every": 5,
        "network": network, "quorum": 2,
    }  # fmt: skip


def load(name: str, root: Path, seed: int = 0) -> PooledDataset:
    """The data set called ``name``: a known name, or the path of an ``.npz`` file.

    Args:
        name: one of :data:`DATASETS`, or ``FILE.npz``.
        root: the folder where data sets lie; ``ROOT/NAME.npz`` comes first, whatever the name.
        seed: of data that are generated for every one.

    Raises:
        UserError: for an unknown name, or a file that is missing or cannot be used.
    """
    if name.endswith(".npz"):
        return load_npz(Path(name))
    if name not in DATASETS and os.path.isfile(located(name)):
        raise UserError(f"{shown(name)} is no .npz file")
    root = located(root)
    if os.path.lexists(root / f"{name}.npz"):
        pool = load_npz(root / f"{name}.npz")
    elif name in DATASETS:
        dataset = DATASETS[name]
        pool = dataset.made(seed) if dataset.made else dataset.load(root)
    else:
        raise UserError(
            f"unknown data set {name!r}; known: {', '.join(DATASETS)}; or put your own at {root / name}.npz"
        )
    constants = DATASETS[name].constants if name in DATASETS else None
    if constants is None or pool.x_train.dtype != np.uint8:
        return pool
    mean, std = (np.array(c, dtype=np.float32).reshape(-1, 1, 1) for c in constants)
    if len(mean) != pool.x_train.shape[1]:
        raise UserError(f"{root / name}.npz: {name} has {len(mean)} channels, not {pool.x_train.shape[1]}")
    return replace(pool, mean=mean, std=std)


def defaults(name: str) -> DataSet:
    """What a run on ``name`` takes where nothing is said; an ``.npz`` gets the general ones."""
    general = DataSet(
        "", load_npz, clients=0, split="", rounds=30, participation=1.0, evaluate_every=5, network="mlp:100"
    )
    return DATASETS.get(name, general)
