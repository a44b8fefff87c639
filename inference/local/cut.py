"""A local step under another joint model, to which nothing flows back from this one: a cut.

Some values of a model are learned as if a part of it were not there, so that what that part gets wrong does not bend
them, and the part is then fitted given them (Plummer, Statistics and Computing 2015).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ..clients.chunk import ClientChunk
from ..objective.joint_model import JointModel
from .base import LocalStep


@dataclass(frozen=True)
class Cut:
    """A step of another method, on the values that both have.

    Args:
        method: whose model and guide the step sees.
        step: trains values of that method.
    """

    method: JointModel
    step: LocalStep

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows after the step."""
        moved = self.step.run(dataclasses.replace(chunk, method=self.method), phase)
        return dataclasses.replace(moved, method=chunk.method)
