"""Which clients rows are predicted for, and what is said of it."""

from __future__ import annotations

import logging

import numpy as np

from hierfl.errors import UserError
from hierfl.plurals import counted

log = logging.getLogger("hierfl")


def check_fitted(names: list[str], ids: list[str]) -> None:
    """Refuses names that were not fitted, all of them in one line."""
    strange = sorted(set(names) - set(ids))
    if not strange:
        return
    some, shown = (", ".join(part[:5]) + ", ..." * (len(part) > 5) for part in (ids, [repr(name) for name in strange]))
    were = f"no client {shown} was" if len(strange) == 1 else f"no clients {shown} were"
    apart = ", from a file of theirs alone" * (len(names) > len(strange))
    raise UserError(f"{were} fitted (there are {some}): --new predicts for clients that are new{apart}")


def name_others(owner: np.ndarray, client: str) -> None:
    """Says that rows which name other clients are predicted by the model of the one that was asked for."""
    others = [str(name) for name in dict.fromkeys(owner.tolist()) if str(name) != client]
    if others:
        shown = ", ".join(map(repr, others[:3])) + ", ..." * (len(others) > 3)
        log.warning(
            "all %s are predicted by the model of %r (--client), also those that name %s; without --client each has "
            "its own client's", counted(len(owner), "row"), client, shown,
        )  # fmt: skip
