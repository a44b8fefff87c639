"""Methods that need some rounds before all of them is trained, and fits that end before."""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

log = logging.getLogger("hierfl")


@runtime_checkable
class NeedsRounds(Protocol):
    """A method of which something is not trained, or by fewer rows, in its first rounds."""

    def untrained_parts(self, rounds: int) -> str:
        """What a fit of so many rounds leaves untrained, and the setting that changes it; empty where it trains all."""
        ...


def warn_of_few_rounds(method: object, rounds: int) -> None:
    """Says that a fit ends before all of its method is trained.

    Args:
        method: what is fitted.
        rounds: of the fit.
    """
    if isinstance(method, NeedsRounds) and rounds > 0 and (line := method.untrained_parts(rounds)):
        log.warning("%s", line)
