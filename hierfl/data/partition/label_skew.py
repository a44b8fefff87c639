"""Label skew: every client has some of the labels, sizes cut at random, equally, or class by class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import UserError
from ..pool import PooledDataset
from .cells import Slices, assemble, labels_of, refilled, slices_equal, slices_own, slices_shared
from .registry import Parts, split


def _grouped(slices: Slices) -> Callable[[PooledDataset, int, float, np.random.Generator], Parts]:
    def make(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
        labels, c = labels_of(pool), int(parameter)
        if len(labels) % c:
            raise UserError(
                f"label-skew:{c} of {len(labels)} labels leaves no complementary groups; "
                f"take a divisor of {len(labels)}, or label-skew-unbalanced:{c}"
            )
        size = len(labels) // c
        if clients % size:
            raise UserError(
                f"label-skew:{c} of {len(labels)} labels needs a multiple of {size} clients, not {clients}; "
                f"or take label-skew-unbalanced:{c}"
            )
        assigned = []
        for _ in range(clients // size):
            assigned += [[int(k) for k in group] for group in rng.permutation(labels).reshape(size, c)]
        return assemble(pool, pool.y_train, pool.y_test, assigned, slices, rng)

    return make


split("label-skew", "C labels each, sizes cut at random with cuts shared by all classes", "C")(_grouped(slices_shared))
split("label-skew-equal", "C labels each, equal sizes", "C")(_grouped(slices_equal))


@split("label-skew-unbalanced", "C labels each, cuts of its own for every class", "C")
def unbalanced(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    assigned = refilled(labels_of(pool), clients, int(parameter), rng)
    return assemble(pool, pool.y_train, pool.y_test, assigned, slices_own, rng)
