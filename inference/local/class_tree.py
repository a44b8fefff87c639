"""A client's own tree of classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierfl.errors import UserError
from hierfl.ppl.class_tree import class_tree

from ..clients.chunk import ClientChunk
from ..clients.class_features import class_features


@dataclass(frozen=True)
class ClassTree:
    """A personal value that is set to a tree of the client's classes, by the means of their features; never sent.

    See :func:`hierfl.ppl.class_tree.class_tree`. Features are those of the base network as the client has it.

    Args:
        name: the value, (C, C - 1).
    """

    name: str

    @property
    def trains(self) -> Sequence[str]:
        """The value that is set."""
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Sets the value in every row."""
        if self.name not in chunk.values:
            raise UserError(f"ClassTree sets {self.name!r}, which personal() does not declare")
        old = chunk.values[self.name]
        found = class_features(chunk)
        tree = class_tree(found.sums / found.counts.clamp_min(1)[..., None], found.counts > 0)
        return chunk.put({self.name: tree.view_as(old)})
