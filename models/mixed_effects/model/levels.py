"""Levels of grouping: clients, groups inside a client such as patients, and groups of clients such as regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hierfl.data.formula.design import Design
from hierfl.data.formula.grouping import Grouping
from hierfl.data.formula.parsed import CLIENT, INNER, OUTER

from .covariance import Covariance

#: by level of the design: the shared value that is the root of its covariance, the personal one that is its effects,
#: and where effects are integrated out
ABOUT: dict[str, tuple[str, str, Literal["site", "server"]]] = {
    CLIENT: ("root", "b", "site"), INNER: ("inner_root", "c", "site"), OUTER: ("outer_root", "", "server"),
}  # fmt: skip


@dataclass(frozen=True)
class Level:
    """Random effects that differ between the groups of one level.

    Attributes:
        name: of the shared value that is the root of its covariance.
        grouping: the effects' columns.
        covariance: theirs.
        where: effects are integrated out, at the site or by the server.
        personal: what clients call the effects; empty where they are the server's.
    """

    name: str
    grouping: Grouping
    covariance: Covariance
    where: Literal["site", "server"] = "site"
    personal: str = ""

    @property
    def q(self) -> int:
        """Effects of a group."""
        return self.covariance.q

    @property
    def slots(self) -> int:
        """Places for the groups, the first for one that is not known: those of a client, or those of all."""
        return (self.grouping.most or len(self.grouping.groups)) + 1

    @property
    def groups(self) -> int:
        """Groups that have names, R."""
        return len(self.grouping.groups)


def levels_of(design: Design) -> tuple[Level, ...]:
    """Levels that a design has, the clients' first: in the order of the population's numbers."""
    found = []
    for level, grouping in design.groupings.items():
        name, personal, where = ABOUT[level]
        found.append(Level(name, grouping, Covariance(grouping.blocks), where, personal))
    return tuple(found)
