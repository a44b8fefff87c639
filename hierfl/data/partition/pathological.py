"""A few random labels each, and as many examples of each."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ...plurals import counted
from ..pool import PooledDataset
from .cells import fifth_held_out
from .registry import Parts, split


@split("pathological", "C random labels each, each=N (100) examples of each; 80/20 inside", "C", options=("each",))
def pathological(
    pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator, each: float = 100
) -> Parts:
    """C random labels each, and as many examples of each, no two clients the same; 80/20 inside (pFedVMP, C.1)."""
    y, c, n = np.concatenate([pool.y_train, pool.y_test]), int(parameter), int(each)
    labels = np.unique(y)
    if c > len(labels):
        raise UserError(f"{counted(c, 'label')} per client are more than the {len(labels)} there are")
    left = {k: rng.permutation(np.flatnonzero(y == k)) for k in labels.tolist()}
    mine = []
    for _ in range(clients):
        enough = [k for k, index in left.items() if len(index) >= n]
        if len(enough) < c:
            raise UserError(
                f"{counted(clients, 'client')} with {counted(c, 'label')}, {counted(n, 'example')} of each, "
                f"are more than {pool.name} has"
            )
        hand = rng.choice(enough, c, replace=False).tolist()
        mine.append(np.concatenate([left[k][:n] for k in hand]))
        left |= {k: left[k][n:] for k in hand}
    return fifth_held_out(mine, rng)
