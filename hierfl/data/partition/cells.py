"""Cells (labels or subclasses), dealt to clients and cut among those that hold them.

What several ways of cutting are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...errors import UserError
from ...plurals import counted
from ..pool import PooledDataset
from .registry import Index, Parts

Slices = Callable[[dict[int, Index], dict[int, list[int]], np.random.Generator], dict[int, list[Index]]]


def deal(cells: list[list[int]], clients: int, rng: np.random.Generator) -> tuple[list[list[int]], list[int]]:
    """Deals every client one cell of each list, in complementary groups (pFedVEM's public code).

    Clients of one group share a shuffle of each list, so that together they hold every cell once. Returns each
    client's cells and each client's group.
    """
    size = len(cells[0])
    assigned: list[list[int]] = []
    for first in range(0, clients, size):
        shuffles = [rng.permutation(cell) for cell in cells]
        assigned += [[int(s[p]) for s in shuffles] for p in range(min(size, clients - first))]
    return assigned, [j // size for j in range(clients)]


def _positions(cell_of: np.ndarray, rng: np.random.Generator) -> dict[int, Index]:
    """The examples of each cell (label or subclass), shuffled."""
    return {int(c): rng.permutation(np.flatnonzero(cell_of == c)) for c in np.unique(cell_of)}


def cut_points(n: int, parts: int, rng: np.random.Generator, what: str) -> Index:
    """parts - 1 distinct cut points, uniform on 1..n-1 (random slicing)."""
    if parts > n:
        raise UserError(f"{what} has {counted(n, 'example')}, too few for the {parts} clients that share it")
    return np.sort(rng.choice(np.arange(1, n), parts - 1, replace=False))


def slices_shared(
    where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
) -> dict[int, list[Index]]:
    """One set of cut points for every cell, by quantile where cells are unequal: only a client's total varies."""
    parts = len(next(iter(owners.values())))
    smallest = min(owners, key=lambda c: len(where[c]))
    n = len(where[smallest])
    cuts = cut_points(n, parts, rng, f"class {smallest}")
    return {c: np.split(where[c], cuts * len(where[c]) // n) for c in owners}


def slices_own(
    where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
) -> dict[int, list[Index]]:
    """Cut points of its own for every cell: clients are class-imbalanced too."""
    return {c: np.split(where[c], cut_points(len(where[c]), len(who), rng, f"class {c}")) for c, who in owners.items()}


def slices_equal(
    where: dict[int, Index], owners: dict[int, list[int]], rng: np.random.Generator
) -> dict[int, list[Index]]:
    """Every cell in parts as equal as can be."""
    for c, who in owners.items():
        if len(who) > len(where[c]):
            raise UserError(
                f"class {c} has {counted(len(where[c]), 'example')}, too few for the {len(who)} clients that share it"
            )
    return {c: np.array_split(where[c], len(who)) for c, who in owners.items()}


def assemble(
    pool: PooledDataset,
    train_cell: np.ndarray,
    test_cell: np.ndarray,
    assigned: list[list[int]],
    slices: Slices,
    rng: np.random.Generator,
) -> Parts:
    """Cuts each cell among the clients that hold it; a client's test set is all test examples of its cells."""
    owners: dict[int, list[int]] = {}
    for j, cells in enumerate(assigned):
        for c in cells:
            owners.setdefault(c, []).append(j)
    where = _positions(train_cell, rng)
    pieces = slices(where, owners, rng)
    mine: list[list[Index]] = [[] for _ in assigned]
    for c, who in owners.items():
        for j, piece in zip(who, pieces[c], strict=True):
            mine[j].append(piece)
    offset = len(pool.y_train)
    tests = {tuple(sorted(cells)): np.flatnonzero(np.isin(test_cell, cells)) + offset for cells in assigned}
    return [np.sort(np.concatenate(m)) for m in mine], [tests[tuple(sorted(cells))] for cells in assigned]


def labels_of(pool: PooledDataset) -> np.ndarray:
    return np.unique(pool.y_train)


def refilled(labels: np.ndarray, clients: int, c: int, rng: np.random.Generator) -> list[list[int]]:
    """c different labels for each client from a shuffled list that is refilled when empty."""
    if c > len(labels):
        raise UserError(f"{c} labels per client are more than the {len(labels)} there are")
    assigned: list[list[int]] = []
    deck: list[int] = []
    for _ in range(clients):
        hand: list[int] = []
        while len(hand) < c:
            fresh = [k for k in deck if k not in hand]
            if not fresh:
                deck += [int(k) for k in rng.permutation(labels)]
                continue
            deck.remove(fresh[0])
            hand.append(fresh[0])
        assigned.append(hand)
    return assigned


def fifth_held_out(mine: Sequence[Index], rng: np.random.Generator) -> Parts:
    """80/20 inside each client."""
    train, test = [], []
    for own in mine:
        index = rng.permutation(own)
        cut = max(1, round(0.2 * len(index))) if len(index) else 0
        test.append(np.sort(index[:cut]))
        train.append(np.sort(index[cut:]))
    return train, test


def whole_test(pool: PooledDataset, clients: int) -> list[Index]:
    return [np.arange(len(pool.y_train), len(pool.y_train) + len(pool.y_test))] * clients
