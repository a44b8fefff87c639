"""Who is summed with whom: groups of the roster, the same for a whole study."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hierfl.errors import UserError

#: fewer sites have no sum that hides one of them: of three, two know the third's together
FEWEST = 3


def groups_of(clients: Sequence[str], groups: int, study: str) -> list[list[str]]:
    """The groups, each sorted by name; a public shuffle, which anybody can repeat.

    They stay the same for a whole study: sums of groups that overlap would tell what single sites add.

    Args:
        clients: the roster.
        groups: how many; 0 for one of all.
        study: digest of the study.

    Raises:
        UserError: where a group has fewer than three clients.
    """
    if len(clients) < FEWEST * max(groups, 1):
        wanted = f"{groups} groups of at least three" if groups else "at least three"
        raise UserError(f"masked sums need {wanted} clients, and the roster has {len(clients)}")
    order = sorted(clients, key=lambda name: hashlib.sha256(f"hierfl mask groups 1\n{study}\n{name}".encode()).digest())
    return [sorted(order[start :: max(groups, 1)]) for start in range(max(groups, 1))]


def threshold(clients: int) -> int:
    """How many of a group must sign a list, and how many shares tell a secret: more than two thirds."""
    return 2 * clients // 3 + 1
