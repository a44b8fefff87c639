"""Dirichlet: each class over the clients by Dir(beta)."""

from __future__ import annotations

import numpy as np

from ..pool import PooledDataset
from .cells import fifth_held_out
from .registry import Index, Parts, split


@split("dirichlet", "each class over the clients by Dir(BETA); 80/20 inside each client", "BETA", whole=False)
def dirichlet(pool: PooledDataset, clients: int, beta: float, rng: np.random.Generator) -> Parts:
    """Each class over the clients by Dir(beta), training and test files merged, 80/20 inside each client (pFedVMP)."""
    y = np.concatenate([pool.y_train, pool.y_test])
    mine: list[list[Index]] = [[] for _ in range(clients)]
    for k in np.unique(y):
        index = rng.permutation(np.flatnonzero(y == k))
        edges = np.floor(np.cumsum(rng.dirichlet(np.full(clients, beta)))[:-1] * len(index)).astype(int)
        for j, piece in enumerate(np.split(index, edges)):
            mine[j].append(piece)
    return fifth_held_out([np.concatenate(pieces) for pieces in mine], rng)
