"""Dirichlet: each class over the clients by Dir(beta)."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ..pool import PooledDataset
from .cells import fifth_held_out
from .registry import Index, Parts, split

#: of a capped draw: examples that every client has at least, and how often it is drawn before it is given up
MIN_EXAMPLES, MAX_DRAWS = 10, 1000


@split(
    "dirichlet", "each class over the clients by Dir(BETA), with `capped` none past N / J; 80/20 inside each client",
    "BETA", whole=False, flags=("capped",),
)  # fmt: skip
def dirichlet(
    pool: PooledDataset, clients: int, beta: float, rng: np.random.Generator, *, capped: float = 0.0
) -> Parts:
    """Each class over the clients by Dir(beta), training and test files merged, 80/20 inside each client (pFedVMP).

    Capped as in the public code that is cited for this split (Lin et al., NeurIPS 2020, and those after them). Classes
    are dealt in turn. A client that has N / J examples gets none of the later classes, and the proportions of the
    others are scaled to one. All is drawn again until every client has at least ten examples.
    """
    y = np.concatenate([pool.y_train, pool.y_test])
    if not capped:
        return fifth_held_out(_dealt(y, clients, beta, rng, len(y) + 1.0), rng)
    for _ in range(MAX_DRAWS):
        mine = _dealt(y, clients, beta, rng, len(y) / clients)
        if min(map(len, mine)) >= MIN_EXAMPLES:
            return fifth_held_out(mine, rng)
    raise UserError(
        f"split dirichlet:{beta:g},capped: after {MAX_DRAWS} draws some client of {clients} still has fewer than "
        f"{MIN_EXAMPLES} examples; fewer clients, or a larger number after dirichlet"
    )


def _dealt(y: Index, clients: int, beta: float, rng: np.random.Generator, most: float) -> list[Index]:
    """Each client's examples; who has ``most`` of them gets none of the classes that come later."""
    mine: list[list[Index]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients)
    for k in np.unique(y):
        index = rng.permutation(np.flatnonzero(y == k))
        shares = rng.dirichlet(np.full(clients, beta))
        if sizes.max() >= most:
            shares = np.where(sizes < most, np.maximum(shares, np.finfo(float).tiny), 0.0)
            shares = shares / shares.sum()
        edges = np.floor(np.cumsum(shares)[:-1] * len(index)).astype(int)
        for j, piece in enumerate(np.split(index, edges)):
            mine[j].append(piece)
            sizes[j] += len(piece)
    return [np.concatenate(pieces) for pieces in mine]
