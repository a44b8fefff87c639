"""What a local step is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..clients.chunk import ClientChunk


class LocalStep(Protocol):
    """One thing that every client does in a round, all rows of the plate at once."""

    @property
    def trains(self) -> Sequence[str]:
        """The values that it changes; shared ones among them become rows."""
        ...

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Takes the rows' values, returns new ones; must not change the ones it was given."""
        ...
