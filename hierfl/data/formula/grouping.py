"""Random effects of one level of grouping: of clients, of groups inside a client, or of groups of clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from .smooth import Smooth
from .units import Units


@dataclass(frozen=True)
class Grouping:
    """Random effects that differ between the groups of one level.

    Attributes:
        names: of their columns.
        blocks: how many effects each random term of the formula has; those of different terms have no correlations.
        units: of the columns.
        factor: the table's column that says whose a row is; empty for the clients.
        groups: names of the groups of a level above the clients: rows have their number, from 1.
        most: groups of a client of a level inside, at most: rows have their number, from 1.
        smooth: whether these groups are the effects of a smooth term, which every row has with columns of its own.
        crossed: whether the groups of such a level cross the clients: a client has rows of many.
    """

    names: tuple[str, ...]
    blocks: tuple[int, ...]
    units: Units
    factor: str = ""
    groups: tuple[str, ...] = ()
    most: int = 0
    crossed: bool = False
    smooth: bool = False

    @classmethod
    def of_smooth(cls, smooth: Smooth) -> Grouping:
        """The effects of a smooth term: a standard deviation, which all of them share."""
        name, units = (smooth.label,), Units((0.0,), (1.0,))
        return cls(name, (1,), units, smooth.label, smooth.groups, crossed=True, smooth=True)

    @property
    def width(self) -> int:
        """Columns of the inputs."""
        return len(self.groups) if self.smooth else len(self.names)

    @property
    def labels(self) -> list[str]:
        """The effects' names beside those of other levels."""
        if self.smooth:
            return list(self.names)
        return [f"{name} | {self.factor}" if self.factor else name for name in self.names]

    def uncorrelated(self) -> Grouping:
        """The same effects, each in a block of its own: around zero, since no intercept takes a centre up."""
        units = Units((0.0,) * len(self.names), self.units.scale)
        return replace(self, blocks=(1,) * len(self.names), units=units)

    def to_users(self, like: Tensor) -> Tensor:
        """See :meth:`.units.Units.to_users`."""
        return self.units.to_users(self.names, self.blocks, like)
