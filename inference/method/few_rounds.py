"""Methods that decide something by a certain round, and fits that end before it."""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

log = logging.getLogger("hierfl")


@runtime_checkable
class DecidesLater(Protocol):
    """A method that keeps rows from training until it has decided something by them."""

    @property
    def decided_by(self) -> int:
        """The round at whose end all is decided; 0 where nothing is to be."""
        ...


def warn_of_few_rounds(method: object, rounds: int) -> None:
    """Says that a fit ends before its method has decided.

    Args:
        method: what is fitted.
        rounds: of the fit.
    """
    if isinstance(method, DecidesLater) and 0 < rounds < method.decided_by:
        log.warning(
            "parts on auto are decided by round %d, and this fit has %d: a third of every client's rows is kept from "
            "training to its end; judged=%d decides in time", method.decided_by, rounds, rounds,
        )  # fmt: skip
