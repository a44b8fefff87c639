"""How many rows the cells of categories have, and how many the formula's conditions select."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from .own_rows import OwnRows
from .rule import Limits, Rule, worst


def cell_rules(own: OwnRows, limits: Limits) -> Iterator[Rule]:
    """The rules about every category, flag and class, and about every interaction of them."""
    tables = [(name,) for name in own.categories] + list(own.interactions)
    if limits.pairs:
        tables += [pair for pair in combinations(own.categories, 2) if pair not in tables]
    for names in dict.fromkeys(tables):
        tried = []
        for part, rows in own.parts():
            least = smallest_cell(own, names, rows)
            margin = f"smallest {least}, at least {limits.least_cell} {own.unit}"
            tried.append((least, Rule(part, least >= limits.least_cell, margin)))
        yield worst(f"cells of {' x '.join(names)}", tried)


def count_rules(counts: np.ndarray, limits: Limits) -> Iterator[Rule]:
    """The rules about the counts of a response in bins, as they leave.

    Args:
        counts: (bins,); of none there is no rule.
        limits: of the site's policy.
    """
    if some := counts[counts > 0].tolist():
        margin = f"smallest {min(some):g}, at least {limits.least_cell}"
        yield Rule("counts of the response", min(some) >= limits.least_cell, margin)


def smallest_cell(own: OwnRows, names: Sequence[str], rows: np.ndarray) -> int:
    """The smallest of the cells of categories that are not empty.

    Args:
        own: the site's rows.
        names: of the categories.
        rows: that count, (n,) of bool.
    """
    values = np.stack([own.categories[name][rows] for name in names], 1)
    cell = np.unique(values, axis=0, return_inverse=True)[1].reshape(-1)
    if own.groups is None:
        return int(np.bincount(cell).min())
    levels = np.atleast_2d(own.groups.T)[:, rows]
    return min(int(np.bincount(np.unique(np.stack([cell, codes]), axis=1)[0]).min()) for codes in levels)


def selection_rules(own: OwnRows, limits: Limits) -> Iterator[Rule]:
    """The rules about every condition by which the formula treats some rows otherwise than others."""
    for condition, selected in own.selections.items():
        tried = []
        for part, rows in own.parts():
            counts = own.count(selected & rows), own.count(~selected & rows)
            holds = all(count == 0 or count >= limits.least_cell for count in counts)
            margin = f"selects {counts[0]} {own.unit} and leaves {counts[1]}, each none or at least {limits.least_cell}"
            tried.append((min(counts), Rule(part, holds, margin)))
        yield worst(f"condition {condition}", tried)
