"""Local steps on what a client has without its held fold, and steps with a part of the model switched on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hierfl.data.chunk_data import ChunkData
from hierfl.data.held_fold import held_fold

from ..clients.chunk import ClientChunk
from .base import LocalStep


@dataclass(frozen=True)
class WithoutFold:
    """A step that does not see the held fold (:mod:`hierfl.data.held_fold`) up to some round, and all rows after it.

    Args:
        step: trains.
        until: the last round without the fold.
    """

    step: LocalStep
    until: int

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows after the step."""
        if chunk.round > self.until:
            return self.step.run(chunk, phase)
        rest = held_fold(chunk.federation).rest
        fewer = dataclasses.replace(chunk, federation=rest, examples=ChunkData(rest, chunk.clients))
        moved = self.step.run(fewer, phase)
        return dataclasses.replace(moved, federation=chunk.federation, examples=chunk.examples)


@dataclass(frozen=True)
class SwitchedOn:
    """A step under the model with a part that may be off.

    Args:
        step: trains personal values.
        switch: the shared value that is 0 or 1.
    """

    step: LocalStep
    switch: str

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows after the step."""
        on = {**chunk.shared, self.switch: chunk.shared[self.switch].new_ones(1)}
        return dataclasses.replace(self.step.run(dataclasses.replace(chunk, shared=on), phase), shared=chunk.shared)
