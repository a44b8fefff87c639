"""Whose the rows of a table are: clients, groups inside them, and groups of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ..client_names import client_names
from .grouping import Grouping
from .parsed import ABOVE, GROUP_SEPARATOR, INNER, INSIDE, OUTER, OWN_FORMULAS, Levels
from .units import Units

if TYPE_CHECKING:
    import pandas as pd

#: numbers from 1 of a level's groups inside each client: {client: {group: number}}
Inside = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Groups:
    """The groups of a table, by number.

    Attributes:
        levels: their columns.
        within: of each level inside the clients, by kind.
        outer: {group: number from 1}.
        homes: the number of each client's, {client: number}.
    """

    levels: Levels
    within: Mapping[str, Inside] = field(default_factory=dict)
    outer: Mapping[str, int] = field(default_factory=dict)
    homes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_table(cls, df: pd.DataFrame, levels: Levels) -> Groups:
        """Those that a table has.

        Raises:
            UserError: for a client that is in two groups of clients.
        """
        if not (levels.inside or levels.outer):
            return cls(levels)
        who = client_names(df[levels.client], f"column {levels.client!r}")
        within = cls.all_inside(who, df, levels)
        if not levels.outer:
            return cls(levels, within)
        names = _names(df, levels.outer)
        outer = {name: k + 1 for k, name in enumerate(sorted(set(names.tolist())))}
        if levels.crossed:
            return cls(levels, within, outer)
        homes: dict[str, str] = {}
        for client, name in _pairs(who, names):
            if homes.setdefault(client, name) != name:
                raise UserError(
                    f"{levels.client} {client!r} is in two of {levels.outer!r}, {homes[client]!r} and {name!r}: "
                    "a client is in one"
                )
        return cls(levels, within, outer, {client: outer[name] for client, name in homes.items()})

    @classmethod
    def all_inside(cls, who: np.ndarray, df: pd.DataFrame, levels: Levels) -> dict[str, Inside]:
        """The groups of every level inside clients, by kind, that a table's rows with clients (n,) have."""
        return {kind: cls.inside(who, group_names(df, names)) for kind, names in levels.inside.items()}

    @staticmethod
    def inside(who: np.ndarray, names: np.ndarray) -> dict[str, dict[str, int]]:
        """Numbers of groups inside clients: {client: {group: number}} of rows' clients and groups, (n,) each."""
        inner: dict[str, dict[str, int]] = {}
        for client, group in _pairs(who, names):
            of_client = inner.setdefault(client, {})
            of_client[group] = len(of_client) + 1
        return inner

    @property
    def inner(self) -> Inside:
        """The groups of the first level inside the clients; nothing where there is none."""
        return self.within.get(INNER, {})

    def names_inside(self, column: str, client: str) -> dict[str, int]:
        """Those that a column has in a client's rows, by the first level that it is part of."""
        kind, columns = next((kind, names) for kind, names in self.levels.inside.items() if column in names)
        numbers = self.within[kind].get(client, {})
        if len(columns) == 1:
            return dict(numbers)
        at = columns.index(column)
        return {name.split(GROUP_SEPARATOR)[at]: number for name, number in numbers.items()}

    @property
    def most(self) -> dict[str, int]:
        """Groups of a client at most, by kind."""
        return {kind: max(map(len, inside.values())) for kind, inside in self.within.items()}

    def numbers(self, df: pd.DataFrame) -> dict[str, np.ndarray]:
        """The rows' groups by level, (n,) each: 0 where a group is not known, or there is no column that says it."""
        if not (self.levels.inside or self.levels.outer):
            return {}
        who = [""] * len(df)
        if self.levels.client in df.columns:
            who = _names(df, self.levels.client).tolist()
        elif len(self.inner) == 1:  # at a site
            who = list(self.inner) * len(df)
        by_level = {}
        for kind, columns in self.levels.inside.items():
            of_clients = self.within.get(kind, {})
            groups = group_names(df, columns).tolist() if {*columns} <= {*df.columns} else [""] * len(df)
            by_level[kind] = [
                of_clients.get(client, {}).get(group, 0) for client, group in zip(who, groups, strict=True)
            ]
        if self.levels.outer and self.levels.outer in df.columns:
            by_level[OUTER] = [self.outer.get(name, 0) for name in _names(df, self.levels.outer).tolist()]
        elif self.levels.outer:  # of a factor that crosses the clients there are no homes
            by_level[OUTER] = [self.homes.get(client, 0) for client in who]
        return {level: np.array(numbers, dtype=float) for level, numbers in by_level.items()}

    def strangers(self, df: pd.DataFrame) -> Iterator[str]:
        """A sentence for each level inside clients of which new rows of fitted clients have no group of the fit.

        Groups that were not fitted are answered, with their spread in the intervals. Where no row has one that was,
        their names may be another coding, such as 0 and 1 for False and True.

        Args:
            df: the rows.
        """
        if self.levels.client not in df.columns:
            return
        who = _names(df, self.levels.client).tolist()
        for kind, columns in self.levels.inside.items():
            fitted = self.within.get(kind, {})
            if not {*columns} <= {*df.columns}:
                continue
            pairs = [pair for pair in zip(who, group_names(df, columns).tolist(), strict=True) if pair[0] in fitted]
            if pairs and not any(group in fitted[client] for client, group in pairs):
                client, group = pairs[0]
                few = ", ".join(map(repr, sorted(fitted[client])[:3]))
                yield (
                    f"no row has a group of {self.levels.factor(kind)!r} that was fitted, such as {group!r} of "
                    f"{client!r}, which has {few}{', ...' * (len(fitted[client]) > 3)}: its own effect is taken as "
                    "unknown"
                )

    def grouping(self, level: str, names: tuple[str, ...], blocks: tuple[int, ...], units: Units) -> Grouping:
        """Random effects of a level inside or above; columns of an own number's formula are no group's.

        Args:
            level: which.
            names, blocks, units: of its columns.
        """
        if level in self.levels.smooths:
            return Grouping.of_smooth(self.levels.smooths[level])
        if level in OWN_FORMULAS:
            return Grouping(names, blocks, units)
        if level in self.levels.inside:
            return Grouping(names, blocks, units, self.levels.factor(level), most=self.most[level])
        return Grouping(names, blocks, units, self.levels.outer, tuple(self.outer), crossed=self.levels.crossed)


def by_field(groupings: Mapping[str, Grouping]) -> dict[str, Any]:
    """Levels inside and above, and formulas, as :meth:`.design.Design.from_columns` takes them."""
    fields: dict[str, Any] = {
        kind: grouping for kind, grouping in groupings.items() if kind not in (*INSIDE[1:], *ABOVE[1:])
    }
    for name, kinds in (("further", INSIDE[1:]), ("above", ABOVE[1:])):
        fields[name] = tuple(grouping for kind, grouping in groupings.items() if kind in kinds)
    return fields


def group_names(df: pd.DataFrame, columns: tuple[str, ...]) -> np.ndarray:
    """Names of the groups that columns say together, (n,).

    Raises:
        UserError: for a name that holds what is put between them.
    """
    parts = [_names(df, column) for column in columns]
    if len(parts) == 1:
        return parts[0]
    for column, names in zip(columns, parts, strict=True):
        if strange := [name for name in dict.fromkeys(names.tolist()) if GROUP_SEPARATOR in name]:
            raise UserError(f"column {column!r} has {strange[0]!r}: names of nested groups have no {GROUP_SEPARATOR!r}")
    return np.array(
        [GROUP_SEPARATOR.join(names) for names in zip(*(part.tolist() for part in parts), strict=True)], object
    )


def _names(df: pd.DataFrame, column: str) -> np.ndarray:
    return client_names(df[column], f"column {column!r}")


def _pairs(first: np.ndarray, other: np.ndarray) -> list[tuple[str, str]]:
    """Those that there are, in order."""
    return sorted(set(zip(first.tolist(), other.tolist(), strict=True)))
