"""What no fit could tell apart, by the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import UserError
from .columns import check_slopes
from .crossed import check_crossed
from .parsed import CLIENT, OUTER, Levels


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
    unit = levels.client
    clients, client = np.unique(who, return_inverse=True)
    if len(clients) < 2:
        raise UserError(f"all rows are of one {unit}: random effects need several")
    grouped = {CLIENT: client}
    check_slopes(random[CLIENT], client, "client")
    for kind in levels.inside:
        pairs, group = np.unique(np.stack([client, numbers[kind].astype(int)]), axis=1, return_inverse=True)
        grouped[kind] = group.ravel()
        what = levels.factor(kind)
        if pairs.shape[1] == len(clients):
            raise UserError(f"no {unit} has more than one {what}: their spreads cannot be told apart")
        check_slopes(random[kind], grouped[kind], what)
        _check_others(levels, grouped, kind)
    if OUTER in numbers and levels.crossed:
        check_crossed(levels, client, numbers[OUTER], random[OUTER])
    elif OUTER in numbers:
        regions = np.array([numbers[OUTER][client == k][0] for k in range(len(clients))])
        if len(np.unique(regions)) < 2:
            raise UserError(f"all rows are of one {levels.outer}: random effects need several")
        if len(np.unique(regions)) == len(clients):
            raise UserError(f"no {levels.outer} has more than one {unit}: their spreads cannot be told apart")
        check_slopes(random[OUTER], numbers[OUTER], levels.outer)
    if not needs_residual:
        return
    for kind in levels.inside or (CLIENT,):
        effects, what = len(random[kind]), unit if kind == CLIENT else levels.factor(kind)
        if np.bincount(grouped[kind]).max() <= effects:
            raise UserError(
                f"no {what} has more rows than the {effects} random effect{'s' * (effects > 1)}, so that the "
                "residual's spread cannot be separated from theirs: give known standard errors"
            )


def _check_others(levels: Levels, grouped: Mapping[str, np.ndarray], kind: str) -> None:
    """Refuses a level whose groups are those of one before it."""
    for other in grouped:
        if other not in (CLIENT, kind):
            both = np.unique(np.stack([grouped[other], grouped[kind]]), axis=1).shape[1]
            if both == len(np.unique(grouped[kind])) == len(np.unique(grouped[other])):
                earlier, two = levels.factor(other), levels.factor(kind)
                raise UserError(f"{earlier!r} and {two!r} are the same groups: their spreads cannot be told apart")
