"""Concept drift: every client has one subclass of every class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import UserError
from ..pool import PooledDataset
from .cells import Slices, assemble, deal, labels_of, refilled, slices_equal, slices_own, slices_shared
from .registry import Parts, split


def _by_subclass(slices: Slices) -> Callable[[PooledDataset, int, float, np.random.Generator], Parts]:
    def make(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
        if pool.fine_train is None or pool.fine_test is None:
            raise UserError(f"concept drift needs subclasses, and {pool.name} has none (fine_train, fine_test)")
        cells = [[int(f) for f in np.unique(pool.fine_train[pool.y_train == k])] for k in labels_of(pool)]
        size = len(cells[0])
        shared = slices is not slices_own
        if shared and any(len(c) != size for c in cells):
            raise UserError("concept-drift needs equally many subclasses in every class; try concept-drift-unbalanced")
        if shared and clients % size:
            raise UserError(f"concept-drift needs a multiple of {size} clients, not {clients}")
        if shared:
            assigned, _ = deal(cells, clients, rng)
        else:  # each class has a list of its own, refilled when empty
            hands = [refilled(np.array(c), clients, 1, rng) for c in cells]
            assigned = [[hand[j][0] for hand in hands] for j in range(clients)]
        return assemble(pool, pool.fine_train, pool.fine_test, assigned, slices, rng)

    return make


split("concept-drift", "one subclass of every class each, shared cuts")(_by_subclass(slices_shared))
split("concept-drift-equal", "one subclass of every class each, equal sizes")(_by_subclass(slices_equal))
split("concept-drift-unbalanced", "one subclass of every class each, cuts of its own for every subclass")(
    _by_subclass(slices_own)
)
