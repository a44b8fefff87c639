"""A personal number from a few that makes a client's ELBO largest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyro
import torch

from hierfl.data.padding import buckets
from hierfl.errors import UserError

from ..clients.chunk import ClientChunk
from ..objective.elbo import elbo


@dataclass(frozen=True)
class HardAssignment:
    """A personal number from a few that makes a client's ELBO largest: hard assignment (the MAP of a label).

    Args:
        name: the personal value, (1,).
        choices: how many; the value is one of 0 ... choices - 1, and the first of equals.
    """

    name: str
    choices: int

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Tries them all on all of a client's training data."""
        if self.name not in chunk.values:
            raise UserError(f"Likeliest sets {self.name!r}, which personal() does not declare")
        parts = []
        with pyro.validation_enabled(False):
            for first, last in buckets(chunk.sizes):
                part = chunk.part(first, last)
                batch, old = part.batch(), part.values[self.name]
                heights = [
                    elbo(chunk.method, batch, {**part.view, self.name: torch.full_like(old, label)}, None)
                    for label in range(self.choices)
                ]
                # One that is not a number is never the likeliest.
                heights = [h.nan_to_num(nan=-torch.inf) for h in heights]
                parts.append(torch.stack(heights).argmax(0).view_as(old).to(old))
        return chunk.put({self.name: torch.cat(parts)})
