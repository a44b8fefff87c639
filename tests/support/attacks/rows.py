"""Rows that sums of products show: X'X of few patients, or of a column that few have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, combinations_with_replacement, product

import numpy as np


def lone_rows(gram: np.ndarray, most: int = 3) -> list[np.ndarray]:
    """Rows of single patients, (p,), read off X'X by columns that single them out.

    Of a column without negative values whose squared sum is its sum of squares one value alone is not zero: that row of
    X'X is the patient's row times this value. Sums and differences of columns single out as well: the intercept less
    all levels of a category is the level that is left out.

    Args:
        gram: X'X, (p, p), of which the first column is the intercept.
        most: columns in a combination, beside all together.
    """
    p, rows = len(gram), []
    weights = [np.eye(p)[0] - sum((np.eye(p)[k] for k in some), np.zeros(p)) for some in _levels(gram)]
    for size in range(1, most + 1):
        for some in combinations(range(p), size):
            for signs in product((1.0, -1.0), repeat=size - 1):
                weights.append(sum(s * np.eye(p)[k] for s, k in zip((1.0, *signs), some, strict=True)))
    for w in weights:
        total, square = float(w @ gram[0]), float(w @ gram @ w)
        if square > 0.5 and abs(total**2 - square) < 1e-9 * max(square, 1.0):
            row = gram @ w / total
            if not any(np.allclose(row, other) for other in rows):
                rows.append(row)
    return rows


def _levels(gram: np.ndarray) -> list[tuple[int, ...]]:
    """Sets of 0/1 columns that no patient has two of."""
    ones = [k for k in range(1, len(gram)) if abs(gram[k, k] - gram[0, k]) < 1e-9]
    return [
        some
        for size in range(1, len(ones) + 1)
        for some in combinations(ones, size)
        if all(abs(gram[a, b]) < 1e-9 for a, b in combinations(some, 2))
    ]


def digits(total: float, base: int, count: int) -> list[int]:
    """The last digits of a sum of powers: how many rows have the exponents 0 to ``count - 1``."""
    number, counts = round(total), []
    for _ in range(count):
        number, digit = divmod(number, base)
        counts.append(digit)
    return counts


def few_rows(gram: np.ndarray, products: np.ndarray, most: int = 120) -> list[np.ndarray]:
    """All tables of three patients that have these sums: of an intercept, a whole number, a column of 0 and 1, and y.

    Args:
        gram: X'X, (3, 3).
        products: X'y, (3,).
        most: of the whole number.

    Returns:
        Tables (3, 3) of whole number, flag and y, rows in order.
    """
    tables = []
    for a in combinations_with_replacement(range(most + 1), 3):
        if sum(a) != round(gram[0, 1]) or sum(v * v for v in a) != round(gram[1, 1]):
            continue
        for flags in product((0, 1), repeat=3):
            if sum(flags) == round(gram[0, 2]) and float(np.dot(a, flags)) == round(gram[1, 2]):
                x = np.column_stack([np.ones(3), a, flags])
                if abs(np.linalg.det(x)) > 1e-9:
                    tables.append(np.column_stack([a, flags, np.linalg.solve(x.T, products)]))
    return tables


def known(rows: Sequence[np.ndarray], truth: np.ndarray, within: float = 1e-4) -> int:
    """How many rows of a table (n, k) are among those that were found."""
    return sum(any(np.abs(row - own).max() < within for row in rows) for own in truth)
