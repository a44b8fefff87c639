"""Levels of grouping: clients, groups inside a client such as patients, groups of clients such as regions, and groups
that cross the clients, such as items that all sites have. Effects of a smooth term are such groups, too: each row has
a column for every one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from hierfl.data.formula.design import Design
from hierfl.data.formula.grouping import Grouping
from hierfl.data.formula.parsed import ABOVE, CLIENT, INNER, INSIDE, OUTER

from .covariance import Covariance

#: by level of the design: the shared value that is the root of its covariance, the value that is its effects, and where
#: these are integrated out
LEVEL_VALUES: dict[str, tuple[str, str, Literal["site", "server"]]] = {
    CLIENT: ("root", "b", "site"), INNER: ("inner_root", "c", "site"), OUTER: ("outer_root", "regions", "server"),
    **{kind: (kind.replace(INNER, "inner_root"), kind.replace(INNER, "c"), "site") for kind in INSIDE[1:]},
}  # fmt: skip
#: the same of groups that cross the clients, and of curves
CROSSED: dict[str, tuple[str, str, Literal["site", "server"]]] = {
    kind: (kind.replace(OUTER, "crossed_root"), kind.replace(OUTER, "crossed"), "server") for kind in ABOVE
}


@dataclass(frozen=True)
class Level:
    """Random effects that differ between the groups of one level.

    Attributes:
        kind: of the design's levels.
        name: of the shared value that is the root of its covariance.
        effects: of the value that is its effects: a client's own, or a shared one.
        grouping: the effects' columns.
        covariance: theirs.
        where: effects are integrated out, at the site or by the server.
    """

    kind: str
    name: str
    effects: str
    grouping: Grouping
    covariance: Covariance
    where: Literal["site", "server"] = "site"

    @property
    def q(self) -> int:
        """Effects of a group."""
        return self.covariance.q

    @property
    def inside(self) -> bool:
        """Whether a client has many of its groups."""
        return self.where == "site" and self.kind != CLIENT

    @property
    def crossed(self) -> bool:
        """Whether its groups cross the clients."""
        return self.grouping.crossed

    @property
    def smooth(self) -> bool:
        """Whether these are the effects of a smooth term: rows have a column for each."""
        return self.grouping.smooth

    @property
    def columns(self) -> int:
        """Columns of a client's sums that its effects have: of groups that cross the clients each has its own."""
        return self.q * self.groups if self.crossed else self.q

    @property
    def groups(self) -> int:
        """Groups of a client at most where they are inside, else all that have names."""
        return self.grouping.most or len(self.grouping.groups)

    @property
    def size(self) -> int:
        """Places for the groups: the first is of one that is not known."""
        return self.groups + 1

    def root(self, entries: Tensor) -> Tensor:
        """L, (..., q, q), of entries (..., r)."""
        return self.covariance.matrix(entries)


def levels_of(design: Design) -> tuple[Level, ...]:
    """Levels that a design has, the clients' first: in the order of the population's numbers."""
    levels = []
    for kind, grouping in design.groupings.items():
        name, effects, where = CROSSED[kind] if grouping.crossed else LEVEL_VALUES[kind]
        levels.append(Level(kind, name, effects, grouping, Covariance(grouping.blocks), where))
    return tuple(levels)
