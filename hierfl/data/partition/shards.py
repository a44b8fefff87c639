"""Shards of the label-sorted data."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ..pool import PooledDataset
from .registry import Parts, split


@split("shards", "S shards of the label-sorted data each (labels may repeat)", "S")
def shards(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    """Sorted by label, cut into S shards per client, dealt at random: a client may get one label twice."""
    count = int(parameter) * clients
    index = rng.permutation(len(pool.y_train))
    index = index[np.argsort(pool.y_train[index], kind="stable")]
    if count > len(index):
        raise UserError(f"{count} shards are more than the {len(index)} training examples")
    shards = np.array_split(index, count)
    dealt = rng.permutation(count).reshape(clients, -1)
    train = [np.sort(np.concatenate([shards[s] for s in hand])) for hand in dealt]
    offset = len(pool.y_train)
    return train, [np.flatnonzero(np.isin(pool.y_test, np.unique(pool.y_train[t]))) + offset for t in train]
