"""A personal value that is set by formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hierfl.errors import UserError

from ..clients.chunk import ClientChunk
from ..state import State


@dataclass(frozen=True)
class SetValue:
    """A personal value that is set: a base class of local steps.

    Args:
        name: the value.
    """

    name: str

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def new_value(self, chunk: ClientChunk, old: Tensor) -> Tensor:
        """The new rows (S, 1, *shape), instead of ``old``."""
        raise NotImplementedError

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Sets the value in every row."""
        if self.name not in chunk.values:
            raise UserError(f"{type(self).__name__} sets {self.name!r}, which personal() does not declare")
        old = chunk.values[self.name]
        new = self.new_value(chunk, old)
        if new.shape != old.shape:
            raise ValueError(f"formula for {self.name}: shape {tuple(new.shape)}, expected {tuple(old.shape)}")
        return chunk.put({self.name: new})


@dataclass(frozen=True)
class ClosedForm(SetValue):
    """A personal value that is set by formula.

    Args:
        name: the value.
        formula: from all values, {name: (*shape) or (S, 1, *shape)}, to the new rows (S, 1, *shape).
    """

    formula: Callable[[State], Tensor]

    def new_value(self, chunk: ClientChunk, old: Tensor) -> Tensor:
        """The value that the formula gives."""
        return self.formula(chunk.view)
