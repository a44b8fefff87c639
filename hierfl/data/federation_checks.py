"""What is refused of a federation's clients."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

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


def check_fraction(name: str, value: object) -> None:
    """Refuses what is no fraction from 0 to below 1.

    Raises:
        UserError: for another number or object.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise UserError(f"{name} must be a fraction in [0, 1), not {value!r}")


def check_seed(seed: object) -> None:
    """Refuses what keys no random numbers.

    Raises:
        UserError: for anything but a whole number of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise UserError(f"seed must be a whole number of at least 0, not {seed!r}")


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
