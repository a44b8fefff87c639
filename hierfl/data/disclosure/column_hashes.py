"""Columns that a study sums over, as hashes of one byte: two studies' columns are compared, row by row.

Where a column of one study and a column of another differ in few rows, the difference of the two studies' sums is a sum
over these rows: of two outcomes that differ in one patient, or of a threshold that has moved over one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .own_rows import FEW_VALUES, OwnRows

#: no column of a table: begins the name of a column of a design, or of a level
COLUMN = ":column "
#: decimal places to which a step's values are one, of a column from 0 to 1
PLACES = 2


def column_hashes(own: OwnRows, secret: bytes) -> dict[str, NDArray[np.int8]]:
    """Hashes of the columns that a formula makes of a site's rows, {name: (n,)}; none of other data.

    Of a column that is a step, in whatever unit, the rows at each of its values are a column, too. A byte tells two
    values apart in 255 of 256 cases, and says little of a value.

    Args:
        own: the site's rows.
        secret: the key, up to 64 bytes.
    """
    if not own.design:
        return {}
    columns = {**own.numbers, **own.weights, **own.design}
    steps = {name: np.round(_from_0_to_1(values), PLACES) for name, values in columns.items()}
    few = {name: values for name, values in steps.items() if len(np.unique(values)) <= FEW_VALUES}
    for name, values in {**own.categories, **few}.items():
        columns |= {f"{name} is {level:g}": values == level for level in np.unique(values)}
    unlike = {np.asarray(values, dtype=float).tobytes(): (name, values) for name, values in columns.items()}
    return {f"{COLUMN}{name}": _hashed(np.asarray(values, dtype=float), secret) for name, values in unlike.values()}


def _from_0_to_1(values: np.ndarray) -> np.ndarray:
    """A column without its unit and its zero, (n,)."""
    width = np.ptp(values)
    return (values - values.min()) / (width if width > 0 else 1.0)


def _hashed(values: np.ndarray, secret: bytes) -> NDArray[np.int8]:
    """A byte for each value, (n,): of its bits, mixed with a key (splitmix64)."""
    keys = np.frombuffer(hashlib.blake2b(b"values of a column", key=secret[:64], digest_size=16).digest(), np.uint64)
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)
    for key in keys:
        bits = (bits ^ key) + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
    return (bits >> np.uint64(56)).astype(np.uint8).view(np.int8)


def least_column_difference(
    hashes: tuple[Mapping[str, NDArray[np.integer]], Mapping[str, NDArray[np.integer]]],
    keys: tuple[np.ndarray, np.ndarray], parts: tuple[np.ndarray, np.ndarray],
) -> int | None:  # fmt: skip
    """The smallest number of rows in which a column of one study and a column of another differ: of all rows, or of
    those of one part. None where there are no two such columns.

    Columns that both studies have count for nothing: each study's own rules compare them.

    Args:
        hashes: of two studies.
        keys: of each row of both.
        parts: that each row of both is of.
    """
    first, other = (
        np.stack(candidates, 1) if (candidates := _columns(positions)) else np.zeros((0, 0)) for positions in hashes
    )
    if not first.size or not other.size:
        return None
    rows = _matched(*keys)
    first, other, at = first[rows[0]], other[rows[1]], (parts[0][rows[0]], parts[1][rows[1]])
    apart = _unequal(first, other)
    shared = apart == 0
    new = ~(shared.any(1)[:, None] | shared.any(0)[None, :])
    candidates = [apart + sum(map(len, keys)) - 2 * len(first)]
    for part in np.unique(np.concatenate(parts)):
        both = (at[0] == part) & (at[1] == part)
        unmatched = sum(int((positions == part).sum()) for positions in parts) - 2 * int(both.sum())
        unequal = _unequal(first[both], other[both])
        candidates.append(np.where(unequal > 0, unequal + unmatched, 0))
    counts = np.stack(candidates)[:, new]
    return int(counts[counts > 0].min()) if (counts > 0).any() else None


def _columns(hashes: Mapping[str, NDArray[np.integer]]) -> list[np.ndarray]:
    return [values for name, values in hashes.items() if name.startswith(COLUMN)]


def _matched(first: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the rows of one key in both, of as many as there are in both."""
    _, at, own = np.intersect1d(_numbered(first), _numbered(other), assume_unique=True, return_indices=True)
    return at, own


def _numbered(keys: np.ndarray) -> np.ndarray:
    """Keys of which each is there once: a key with its number among the same ones, (n,) pairs."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.searchsorted(ordered, ordered, side="left")
    numbered = np.empty(len(keys), dtype=[("key", keys.dtype), ("number", np.int64)])
    numbered["key"][order], numbered["number"][order] = ordered, np.arange(len(keys)) - first
    return numbered


def _unequal(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The number of rows in which each two columns differ, (p, q)."""
    return np.stack([(column[:, None] != other).sum(0) for column in first.T]).reshape(first.shape[1], other.shape[1])
