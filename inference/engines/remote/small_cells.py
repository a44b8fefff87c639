"""Counts of a site's rows with a cell of few rows: they do not leave."""

from __future__ import annotations

import logging

from ...state import State

log = logging.getLogger("hierfl")


def without_small_cells(method: object, sums: State, least: int) -> State:
    """A method's sums, with zeros instead of counts of which a cell has few rows.

    Args:
        method: ``row_counts`` are the names of its sums that count rows; none where it has no such attribute.
        sums: {name: tensor} of one site.
        least: rows in every cell that is not empty.
    """
    kept = dict(sums)
    for name in getattr(method, "row_counts", ()):
        if name in kept and bool(((kept[name] > 0) & (kept[name] < least)).any()):
            log.warning("the counts of %s are not sent: a cell has fewer than %d rows", name, least)
            kept[name] = kept[name].new_zeros(kept[name].shape)
    return kept
