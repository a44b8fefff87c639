"""Whose the rows of a table are: clients, groups inside them, and groups of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ..client_names import client_names
from .columns import check_slopes
from .grouping import Grouping
from .parsed import CLIENT, INNER, OUTER, OWN, Levels
from .units import Units

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Groups:
    """The groups of a table, by number.

    Attributes:
        levels: their columns.
        inner: of each client, {client: {group: number from 1}}.
        outer: {group: number from 1}.
        homes: the number of each client's, {client: number}.
    """

    levels: Levels
    inner: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    outer: Mapping[str, int] = field(default_factory=dict)
    homes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, df: pd.DataFrame, levels: Levels) -> Groups:
        """Those that a table has.

        Raises:
            UserError: for a client that is in two groups of clients.
        """
        who = client_names(df[levels.client], f"column {levels.client!r}")
        inner = cls.inside(who, _names(df, levels.inner)) if levels.inner else {}
        if not levels.outer:
            return cls(levels, inner)
        names = _names(df, levels.outer)
        outer = {name: k + 1 for k, name in enumerate(sorted(set(names.tolist())))}
        homes: dict[str, str] = {}
        for client, name in _pairs(who, names):
            if homes.setdefault(client, name) != name:
                raise UserError(
                    f"{levels.client} {client!r} is in two of {levels.outer!r}, {homes[client]!r} and {name!r}: "
                    "a client is in one"
                )
        return cls(levels, inner, outer, {client: outer[name] for client, name in homes.items()})

    @staticmethod
    def inside(who: np.ndarray, names: np.ndarray) -> dict[str, dict[str, int]]:
        """Numbers of groups inside clients: {client: {group: number}} of rows' clients and groups, (n,) each."""
        inner: dict[str, dict[str, int]] = {}
        for client, group in _pairs(who, names):
            of_client = inner.setdefault(client, {})
            of_client[group] = len(of_client) + 1
        return inner

    def numbers(self, df: pd.DataFrame) -> dict[str, np.ndarray]:
        """The rows' groups by level, (n,) each: 0 where a group is not known, or there is no column that says it."""
        who = [""] * len(df)
        if self.levels.client in df.columns:
            who = _names(df, self.levels.client).tolist()
        elif len(self.inner) == 1:  # (at a site)
            who = list(self.inner) * len(df)
        found = {}
        if self.levels.inner:
            groups = _names(df, self.levels.inner).tolist() if self.levels.inner in df.columns else [""] * len(df)
            found[INNER] = [self.inner.get(client, {}).get(group, 0) for client, group in zip(who, groups, strict=True)]
        if self.levels.outer and self.levels.outer in df.columns:
            found[OUTER] = [self.outer.get(name, 0) for name in _names(df, self.levels.outer).tolist()]
        elif self.levels.outer:
            found[OUTER] = [self.homes.get(client, 0) for client in who]
        return {level: np.array(numbers, dtype=float) for level, numbers in found.items()}

    def grouping(self, level: str, names: tuple[str, ...], blocks: tuple[int, ...], units: Units) -> Grouping:
        """Random effects of a level inside or above; columns of an own number's formula are no group's.

        Args:
            level: which.
            names, blocks, units: of its columns.
        """
        if level in OWN:
            return Grouping(names, blocks, units)
        if level == INNER:
            most = max(len(groups) for groups in self.inner.values())
            return Grouping(names, blocks, units, self.levels.inner, most=most)
        return Grouping(names, blocks, units, self.levels.outer, tuple(self.outer))


def _names(df: pd.DataFrame, column: str) -> np.ndarray:
    return client_names(df[column], f"column {column!r}")


def _pairs(one: np.ndarray, other: np.ndarray) -> list[tuple[str, str]]:
    """Those that there are, in order."""
    return sorted(set(zip(one.tolist(), other.tolist(), strict=True)))


def check_groups(
    levels: Levels,
    who: np.ndarray,
    numbers: Mapping[str, np.ndarray],
    random: Mapping[str, Mapping[str, np.ndarray]],
    needs_residual: bool,
) -> None:
    """Refuses tables from which the spread of random effects, or that of the residual, cannot be learned.

    Args:
        levels: of grouping.
        who: client of each row, (n,).
        numbers: of its groups, by level, (n,) each.
        random: columns of each level's random effects.
        needs_residual: whether the residual has a spread that is learned.

    Raises:
        UserError: for such a table.
    """
    place = levels.client
    clients, client = np.unique(who, return_inverse=True)
    if len(clients) < 2:
        raise UserError(f"all rows are of one {place}: random effects need several")
    finest, what = client, place
    check_slopes(random[CLIENT], client, "client")
    if INNER in numbers:
        pairs, finest = np.unique(np.stack([client, numbers[INNER].astype(int)]), axis=1, return_inverse=True)
        what = levels.inner
        if pairs.shape[1] == len(clients):
            raise UserError(f"no {place} has more than one {what}: their spreads cannot be told apart")
        check_slopes(random[INNER], finest.ravel(), what)
    if OUTER in numbers:
        regions = np.array([numbers[OUTER][client == k][0] for k in range(len(clients))])
        if len(np.unique(regions)) < 2:
            raise UserError(f"all rows are of one {levels.outer}: random effects need several")
        if len(np.unique(regions)) == len(clients):
            raise UserError(f"no {levels.outer} has more than one {place}: their spreads cannot be told apart")
        check_slopes(random[OUTER], numbers[OUTER], levels.outer)
    effects = len(random[INNER if INNER in numbers else CLIENT])
    if needs_residual and np.bincount(finest.ravel()).max() <= effects:
        raise UserError(
            f"no {what} has more rows than the {effects} random effect{'s' * (effects > 1)}, so that the "
            "residual's spread cannot be separated from theirs: give known standard errors"
        )
