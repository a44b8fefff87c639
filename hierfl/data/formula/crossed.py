"""A factor that crosses the clients, such as items that all sites have: which tables and sizes are refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import UserError
from .columns import check_slopes
from .parsed import Levels

#: effects of all groups together: sums are over pairs of them
MAX_EFFECTS = 200


def check_size(factor: str, groups: int, effects: int) -> None:
    """Refuses a factor with too many effects: messages have a number for each pair of them.

    Args:
        factor: its column.
        groups: of it.
        effects: of each group.

    Raises:
        UserError: for too many.
    """
    if groups * effects > MAX_EFFECTS:
        raise UserError(
            f"{factor!r} crosses the clients and has {groups} x {effects} random effects: messages have a number for "
            f"each pair, and {MAX_EFFECTS} effects are understood; a factor with more groups can be the clients"
        )


def check_homes(factor: str, homes: np.ndarray, effects: int, sites: int) -> None:
    """Refuses sites whose rows do not share a factor's groups, or share too many.

    Args:
        factor: its column.
        homes: at how many sites each group has rows, (I,).
        effects: of each group.
        sites: how many there are.

    Raises:
        UserError: for such sites.
    """
    if (homes > 0).sum() < 2 or homes.max() < 2:
        raise UserError(f"two of {factor!r} have to have rows, and one of them at several sites")
    if round(float(homes.sum())) == sites:
        raise UserError(f"each site has rows of one of {factor!r}, groups of sites: write (1 | {factor}/site)")
    check_size(factor, len(homes), effects)


def check_crossed(levels: Levels, client: np.ndarray, group: np.ndarray, random: Mapping[str, np.ndarray]) -> None:
    """Refuses a table whose factor does not cross the clients, or is too large.

    Args:
        levels: of grouping.
        client, group: of each row, (n,) each.
        random: columns of the factor's random effects, (n,) each.

    Raises:
        UserError: for such a table, with the way to write it.
    """
    unit, factor = levels.client, levels.outer
    number = len(np.unique(group))
    if number < 2:
        raise UserError(f"all rows are of one {factor}: random effects need several")
    pairs = len(np.unique(np.stack([client, group]), axis=1).T)
    if pairs == number:
        raise UserError(
            f"each {factor} has rows of one {unit}, so that it lies inside: write (1 | {unit}/{factor}) for both"
        )
    if pairs == len(np.unique(client)):
        raise UserError(
            f"each {unit} has rows of one {factor}, which is a group of clients: write (1 | {factor}/{unit}) for "
            f"both, the client {unit}"
        )
    check_size(factor, number, len(random))
    check_slopes(random, group, factor)
