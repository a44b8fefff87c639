"""Columns in which few rows are alone, and rows that have nearly all of what the columns determine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from .own_rows import OwnRows, codes
from .rule import Limits, Rule, worst

#: of a column's range: numbers so near to each other count as one
WINDOW_SHARE = 0.01
#: share from which fewer rows than a cell has are taken for isolated by a combination of columns
ISOLATED = 0.999
#: of the largest singular value: smaller ones belong to combinations of other columns
DEPENDENT = 1e-9
#: of a share
ROUNDING = 1e-9


def column_rules(own: OwnRows, limits: Limits) -> Iterator[Rule]:
    """The rules about all numbers and columns of which sums leave: few rows may not differ from all others in one."""
    tried = []
    for name, values in {**own.numbers, **own.design}.items():
        for part, rows in own.parts():
            apart = own.count(rows & apart_rows(values, rows))
            margin = _apart_in_words(apart, own.count(rows), own.unit, limits.least_cell)
            holds = apart == 0 or apart >= limits.least_cell
            tried.append((apart or np.inf, Rule(f"{name}, {part}", holds, margin)))
    if tried:
        yield worst("rows that stand alone in a column", tried)


def _apart_in_words(apart: int, every: int, unit: str, least: int) -> str:
    """How many are away from where most lie in a column, and what may be."""
    words = f"{apart} of {every} {unit} are away from where most lie, which none may be, or {least} and more"
    if unit == "groups" and 0 < apart < least and every < 2 * least:
        words += f"; with so few groups that is so of most numbers that a group has once: use levels of {least} groups"
    return words


def apart_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows that do not lie where most do, (n,) of bool: outside the fullest window of
    a share :data:`WINDOW_SHARE` of the range.

    Args:
        values: of a column, (n,).
        rows: that count, (n,) of bool.
    """
    ordered = np.sort(values[rows])
    width = WINDOW_SHARE * (ordered[-1] - ordered[0])
    last = np.searchsorted(ordered, ordered + width, side="right")
    first = int(np.argmax(last - np.arange(len(ordered))))
    return (values < ordered[first]) | (values > ordered[first] + width)


def share_rules(own: OwnRows, limits: Limits) -> Iterator[Rule]:
    """The rules about every number beside a constant, and about all columns of the design together."""
    tables = {name: {"": np.ones(own.n), name: values} for name, values in own.numbers.items()}
    if own.design:
        tables["the design"] = dict(own.design)
    tried, unit = [], own.unit.removesuffix("s")
    for name, columns in tables.items():
        for part, rows in own.parts():
            share = largest_share(columns, rows, own.groups)
            margin = f"{share:.2f} of a combination is one {unit}'s, at most {limits.largest_share:g}"
            tried.append((-share, Rule(f"{name}, {part}", share <= limits.largest_share + ROUNDING, margin)))
    if tried:
        yield worst("largest share of a row", tried)
    for name, weights in own.weights.items():
        tried = []
        for part, rows in own.parts():
            share = largest_share({name: np.sqrt(weights)}, rows, own.groups)
            margin = f"{share:.2f} of all is one {unit}'s, at most {limits.largest_share:g}"
            tried.append((-share, Rule(part, share <= limits.largest_share, margin)))
        yield worst(f"largest {name}", tried)
        tried = []
        for part, rows in own.parts():
            share = max(most_of(weights[rows], groups, limits) for groups in groups_of(own, rows))
            margin = f"{share:.4f} of all is that of fewer than {limits.least_cell} {own.unit}, at most {ISOLATED:g}"
            tried.append((-share, Rule(part, share <= ISOLATED, margin)))
        yield worst(f"few {own.unit} with nearly all {name}", tried)
    if own.design:
        judged = []
        for part, rows in own.parts():
            few, share = isolated(own.design, rows, limits.least_cell, own.groups)
            margin = f"no combination is of fewer than {limits.least_cell} {own.unit} alone"
            judged.append((few, Rule(part, not few, f"{few} {own.unit} have {share:.4f} of one" if few else margin)))
        yield worst("combinations of the design's columns", judged)


def basis(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the space of columns, (rows, rank)."""
    x = np.stack([column[rows] for column in columns.values()], 1).astype(float)
    largest = np.abs(x).max(axis=0, initial=0.0)
    x = x / np.where(largest > 0, largest, 1.0)
    size = np.linalg.norm(x, axis=0)
    left, values, _ = np.linalg.svd(x / np.where(size > 0, size, 1.0), full_matrices=False)
    return left[:, values > DEPENDENT * values.max(initial=0.0)]


def largest_share(columns: Mapping[str, np.ndarray], rows: np.ndarray, groups: np.ndarray | None = None) -> float:
    """The largest share of one row, or one group, in some combination of columns: its largest leverage, from 0 to 1.

    A combination's sum of squares says that row where the share is 1. A row that is the only one of a level has 1.

    Args:
        columns: of the design, {name: (n,)}.
        rows: that count, (n,) of bool.
        groups: of the rows, (n,), or (n, levels), of which the largest counts; None for each row by itself.
    """
    if groups is not None and groups.ndim > 1:
        return max(largest_share(columns, rows, level) for level in groups.T)
    q = basis(columns, rows)
    if groups is None:
        return min(1.0, float(np.square(q).sum(1).max(initial=0.0)))
    order = np.argsort(groups[rows], kind="stable")
    first = np.flatnonzero(np.diff(groups[rows][order])) + 1
    return min(1.0, max(float(np.linalg.norm(part, 2) ** 2) for part in np.split(q[order], first)))


def groups_of(own: OwnRows, rows: np.ndarray) -> list[np.ndarray]:
    """The groups of each level, whole numbers from 0, of the rows (n,) that count; each row by itself without
    groups.
    """
    if own.groups is None:
        return [np.arange(int(rows.sum()))]
    return [codes(level[rows]) for level in np.atleast_2d(own.groups.T)]


def most_of(weights: np.ndarray, groups: np.ndarray, limits: Limits) -> float:
    """The largest share of all weights (n,) that fewer groups (n,) have than a cell has to have, from 0 to 1."""
    by_group = np.sort(np.bincount(groups, weights))[::-1]
    return float(by_group[: limits.least_cell - 1].sum() / by_group.sum()) if by_group.sum() > 0 else 0.0


def isolated(
    columns: Mapping[str, np.ndarray], rows: np.ndarray, least: int, groups: np.ndarray | None = None
) -> tuple[int, float]:
    """Fewer than ``least`` rows, or groups, that have nearly all of a combination of columns: how many, and their
    share; 0 where none were found. Beside each one that could be among them those are tried that go with it.

    Args:
        columns: of the design, {name: (n,)}.
        rows: that count, (n,) of bool.
        least: rows, or groups, of a cell.
        groups: of the rows, (n,), or (n, levels), of which the fewest count; None for each row by itself.
    """
    if groups is not None and groups.ndim > 1:
        levels = [isolated(columns, rows, least, level) for level in groups.T]
        return min((level for level in levels if level[0]), default=(0, 0.0))
    q = basis(columns, rows)
    if groups is None:
        order, first = np.arange(len(q)), np.arange(len(q))
        leverage = np.square(q).sum(1)
    else:
        order = np.argsort(groups[rows], kind="stable")
        first = np.r_[0, np.flatnonzero(np.diff(groups[rows][order])) + 1]
        leverage = np.array([np.linalg.norm(part, 2) ** 2 for part in np.split(q[order], first[1:])])
    ends = np.r_[first[1:], len(q)]
    for combination in np.flatnonzero(leverage > ISOLATED / max(least - 1, 1)):
        own = q[order[first[combination] : ends[combination]]]
        hat = np.add.reduceat(np.square(q[order] @ own.T).sum(1), first)
        hat[combination] = np.inf
        beside = np.argsort(-hat, kind="stable")
        for few in range(1, min(least, len(first))):
            taken = np.concatenate([order[first[k] : ends[k]] for k in beside[:few]])
            share = float(np.linalg.norm(q[taken], 2) ** 2)
            if share > ISOLATED:
                return few, share
    return 0, 0.0
