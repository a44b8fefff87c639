"""The clients that the data name."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ...plurals import counted
from ..client_names import rows_of
from ..pool import PooledDataset
from .registry import Parts, split


def _names(pool: PooledDataset, clients: int) -> list[str]:
    """The clients that the data name; ``clients`` is their number, or 0."""
    if pool.client_train is None or pool.client_test is None:
        raise UserError(
            f"{pool.name} does not say whose the rows are (client_train, client_test); choose a --split (split=...)"
        )
    names = sorted(str(c) for c in np.unique(pool.client_train))
    if clients not in (0, len(names)):
        raise UserError(f"{pool.name} has {counted(len(names), 'client')} of its own, not {clients}")
    strangers = sorted(set(pool.client_test.astype(str)) - set(names))
    if strangers:
        raise UserError(f"client {strangers[0]} of {pool.name} has test rows but no training rows")
    return names


@split("natural", "the clients that the data name", needs_labels=False, clients=_names)
def natural(pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator) -> Parts:
    assert pool.client_train is not None
    assert pool.client_test is not None
    train, test = rows_of(pool.client_train.astype(str)), rows_of(pool.client_test.astype(str))
    offset, none = len(pool.y_train), np.empty(0, dtype=np.int64)
    return list(train.values()), [test.get(name, none) + offset for name in train]
