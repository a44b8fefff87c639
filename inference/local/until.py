"""A step of the first rounds only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..clients.chunk import ClientChunk
from .base import LocalStep


@dataclass(frozen=True)
class Until:
    """A step that is taken up to a round; afterwards what it trains is held, and sent as it is.

    Args:
        step: the step.
        rounds: the last round in which it is taken; 0 for all rounds.
    """

    step: LocalStep
    rounds: int

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The step, or copies of the values as they are."""
        if not self.rounds or chunk.round <= self.rounds:
            return self.step.run(chunk, phase)
        return chunk.own(k for name in self.trains for k in chunk.method.expand(name, chunk.view))
