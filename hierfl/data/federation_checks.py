"""What is refused of a federation's clients."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError
from .pool import Task


def check_clients(ids: Sequence[str], *, outline: bool) -> None:
    """Refuses a federation without clients, or with two of one name.

    Raises:
        UserError: for these.
    """
    if not len(ids) and not outline:
        raise UserError("a federation needs at least one client")
    if len(set(ids)) != len(ids):
        raise UserError("client ids must differ")


def check_sizes(ids: Sequence[str], sizes: Sequence[int], task: Task) -> None:
    """Refuses a client with too few training examples.

    Raises:
        UserError: with its name and what to do.
    """
    least = 2 if task == "classification" else 1
    for name, n in zip(ids, sizes, strict=True):
        if n < least:
            raise UserError(
                f"client {name} has {n} training example{'s' * (n != 1)}, fewer than {least}; leave it out, take fewer "
                "clients, another split or seed, or a random split that redraws (dirichlet:0.3,redraw)"
            )
