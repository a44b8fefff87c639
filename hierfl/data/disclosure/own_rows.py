"""A site's rows as the rules look at them, whichever kind of file they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

#: numbers of so many values are counted: their sums and sums of squares say how many rows have each
FEW_VALUES = 3


@dataclass(frozen=True)
class OwnRows:
    """A site's rows.

    Attributes:
        n: how many.
        held_out: rows of the parts that are held out, {part: (n,) of bool}; none of an empty part.
        categories: values of categories, flags and classes, {name: (n,) whole numbers from 0}.
        interactions: of the formula's terms, names of the categories in each.
        numbers: {name: (n,) numbers} of which sums leave.
        design: columns of a formula's design and its response, {name: (n,)}; empty of a network's.
        fixed, random: how many columns of effects the design has.
        selections: rows that the formula's conditions select, {condition: (n,) of bool}.
        weights: how much each row counts, {what: (n,)}.
        groups: of each row, whole numbers from 0, (n,), or (n, levels) of several levels; None where rows are in no
            groups inside the site.
        closed: whether sums over parts of the rows can be worked out from what leaves, as for a formula's.
        curves: names of columns of the design that are a smooth term's.
    """

    n: int
    held_out: Mapping[str, np.ndarray]
    categories: Mapping[str, np.ndarray]
    numbers: Mapping[str, np.ndarray]
    interactions: tuple[tuple[str, ...], ...] = ()
    design: Mapping[str, np.ndarray] = field(default_factory=dict)
    fixed: int = 0
    random: int = 0
    selections: Mapping[str, np.ndarray] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    groups: np.ndarray | None = None
    closed: bool = False
    curves: frozenset[str] = frozenset()

    def parts(self) -> Iterator[tuple[str, np.ndarray]]:
        """Sets of rows whose sums leave, or follow from what leaves: all, and of a formula those of each part."""
        yield "all rows", np.ones(self.n, dtype=bool)
        if self.closed and self.held_out:
            yield "training rows", ~np.any(list(self.held_out.values()), axis=0)
            for name, rows in self.held_out.items():
                yield f"{name} rows", rows

    def count(self, rows: np.ndarray) -> int:
        """How many rows a mask (n,) has; of rows in groups, how many groups, of the level that has the fewest."""
        if self.groups is None:
            return int(rows.sum())
        of_levels = self.groups[:, None] if self.groups.ndim == 1 else self.groups
        return min(len(np.unique(groups[rows])) for groups in of_levels.T)

    @property
    def unit(self) -> str:
        """What is counted."""
        return "rows" if self.groups is None else "groups"


def codes(values: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 for values (n,) of any kind."""
    return np.unique(np.asarray(values).astype(str), return_inverse=True)[1].reshape(-1)


def few_values(numbers: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers, (n,) each, that have so few values that they are counted as categories, too."""
    return {name: codes(values) for name, values in numbers.items() if 1 < len(np.unique(values)) <= FEW_VALUES}
