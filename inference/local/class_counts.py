"""How many training examples of each class a client has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hierfl.devices import send
from hierfl.errors import UserError

from ..clients.chunk import ClientChunk


@dataclass(frozen=True)
class ClassCounts:
    """A personal value that is set to how many training examples of each class the client has; never sent.

    They are of all its training data, so that no minibatch, and no last one that is short, changes them.

    Args:
        name: the value, (C,).
    """

    name: str

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Sets the value in every row."""
        if self.name not in chunk.values:
            raise UserError(f"ClassCounts sets {self.name!r}, which personal() does not declare")
        old = chunk.values[self.name]
        counts = torch.from_numpy(chunk.federation.by_class.counts[chunk.clients])
        return chunk.put({self.name: send(counts, old.device, old.dtype).view_as(old)})
