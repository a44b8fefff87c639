"""Whether two studies' rows have patients in common, by keyed hashes of their cells."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from .column_hashes import COLUMN
from .row_hashes import BESIDE_OTHERS, IDENTIFYING, PART, SELECTED, RowHashes, same_data

#: standard deviations above what chance makes
MAX_CHANCE_SDS = 4.0
#: equal pairs within sets beyond those that are seen, where a column is left out
UNSEEN = 4
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def share_rows(first: RowHashes, other: RowHashes) -> bool:
    """Whether rows are in both sets, be it one of them, unless chance alone makes as many equal.

    Rows are compared in all columns that both sets have. They are compared in all of them but one as well, which may
    have been written again: there it takes about fifteen rows. Columns that do not tell rows apart say nothing of few
    rows. What chance makes is estimated from pairs within each set.

    Args:
        one, other: hashes with one secret, {column: (n,)}.
    """
    if same_data(first, other):
        return True
    common = sorted(name for name in first.keys() & other.keys() if not name.startswith((PART, SELECTED, COLUMN)))
    if not common:
        return False
    parts = [{name: _mixed(hashes[name], name) for name in common} for hashes in (first, other)]
    wholes = [sum(part.values(), np.zeros(1, np.uint64)) for part in parts]
    if _alike(wholes[0], wholes[1], IDENTIFYING, 0):
        return True
    fewer = ((wholes[0] - parts[0][name], wholes[1] - parts[1][name]) for name in common)
    return len(common) > 1 and any(_alike(own, more, BESIDE_OTHERS, UNSEEN) for own, more in fewer)


def _mixed(cells: NDArray[np.integer], name: str) -> NDArray[np.uint64]:
    """The mixed cells of a column: sums over columns tell rows apart, and one column can be taken off them."""
    salt = np.frombuffer(hashlib.blake2b(name.encode(), digest_size=8).digest(), np.uint64)
    mixed: NDArray[np.uint64] = (cells.view(np.uint64) ^ salt) * _MIX
    return (mixed ^ (mixed >> np.uint64(31))) * _MIX


def _alike(these: NDArray[np.uint64], other: NDArray[np.uint64], telling: float, unseen: int) -> bool:
    """Whether more pairs of both sets are equal than chance makes, among keys that tell rows apart."""
    (keys, counts), (others, more) = (np.unique(part, return_counts=True) for part in (these, other))
    if len(keys) < telling * len(these) or len(others) < telling * len(other):
        return False
    _, first, second = np.intersect1d(keys, others, assume_unique=True, return_indices=True)
    equal = int((counts[first] * more[second]).sum())
    within = sum(int((c * (c - 1)).sum()) for c in (counts, more))
    pairs = sum(n * (n - 1) for n in (len(these), len(other)))
    by = 2 * len(these) * len(other) / max(1, pairs)
    expected = by * (within / 2 + unseen)  # whose own variance is about by times as large
    return equal > expected + MAX_CHANCE_SDS * math.sqrt(expected * (1 + by))
