"""A local step at the shared values that predictions are made with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ..clients.chunk import ClientChunk
from .base import LocalStep


@dataclass(frozen=True)
class AtPrediction:
    """A step that does not see how a client has trained its copies, but what the server would predict with.

    Args:
        step: which trains personal values alone.
    """

    step: LocalStep

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows after the step, with their copies as they were."""
        shared = chunk.method.prediction_params(chunk.shared)  # type: ignore[attr-defined]
        own = {k: v for k, v in chunk.values.items() if k not in shared}
        moved = self.step.run(dataclasses.replace(chunk, shared=shared, values=own), phase)
        return dataclasses.replace(chunk, values={**chunk.values, **moved.values})
