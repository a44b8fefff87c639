"""Exactly S labels each, exactly equal sizes."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ..pool import PooledDataset
from .cells import assemble, labels_of, refilled
from .registry import Index, Parts, split


@split("classes", "exactly S labels each, exactly equal sizes", "S")
def classes(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    assigned = refilled(labels_of(pool), clients, int(parameter), rng)
    counts = {int(k): int(np.sum(pool.y_train == k)) for k in labels_of(pool)}
    holders = {k: sum(k in hand for hand in assigned) for k in counts}
    examples_each = min(counts[k] // holders[k] for k in counts if holders[k])
    if not examples_each:
        raise UserError(f"classes:{int(parameter)} with {clients} clients leaves less than one example per class")

    def slices(
        where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
    ) -> dict[int, list[Index]]:
        return {c: np.split(where[c][: examples_each * len(who)], len(who)) for c, who in owners.items()}

    return assemble(pool, pool.y_train, pool.y_test, assigned, slices, rng)
