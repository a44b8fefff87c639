"""Quantity: all labels for everyone; sizes cut at random, equal, or left to chance."""

from __future__ import annotations

import numpy as np

from ..pool import PooledDataset
from .cells import cut_points, whole_test
from .registry import Parts, split


@split("random-slicing", "all labels, sizes cut at random", needs_labels=False)
def random_slicing(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    index = rng.permutation(len(pool.y_train))
    pieces = np.split(index, cut_points(len(index), clients, rng, pool.name))
    return [np.sort(p) for p in pieces], whole_test(pool, clients)


@split("equal", "all labels, equal sizes", needs_labels=False)
def equal(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """Sizes as equal as can be, each label spread evenly."""
    index = rng.permutation(len(pool.y_train))
    if pool.task == "classification":
        index = index[np.argsort(pool.y_train[index], kind="stable")]
    return [np.sort(index[j::clients]) for j in range(clients)], whole_test(pool, clients)


@split("iid", "every example to a client at random", needs_labels=False)
def iid(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """Every example goes to a client chosen at random."""
    owner = rng.integers(clients, size=len(pool.y_train))
    return [np.flatnonzero(owner == j) for j in range(clients)], whole_test(pool, clients)
