"""A personal value that is set by formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hierfl.errors import UserError

from ..clients.chunk import ClientChunk
from ..state import State


@dataclass(frozen=True)
class ClosedForm:
    """A personal value that is set by formula.

    Args:
        name: the value.
        formula: from all values, {name: (*shape) or (S, 1, *shape)}, to the new rows (S, 1, *shape).
    """

    name: str
    formula: Callable[[State], Tensor]

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Sets the value in every row."""
        if self.name not in chunk.values:
            raise UserError(f"ClosedForm sets {self.name!r}, which personal() does not declare")
        new = self.formula(chunk.view)
        if new.shape != chunk.values[self.name].shape:
            raise ValueError(
                f"formula for {self.name}: shape {tuple(new.shape)}, expected {tuple(chunk.values[self.name].shape)}"
            )
        return chunk.put({self.name: new})
