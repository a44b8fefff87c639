"""What a client remembers of its gradients, so that only what is new is compressed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hierfl.errors import UserError

from ..clients.chunk import ClientChunk
from ..messages.form import Field
from ..messages.pipeline import Pipeline, Stage


@dataclass(frozen=True)
class CompressedMemory:
    """m_j <- m_j + a C(g_j - m_j), with what the server decodes of the message (DIANA; Mishchenko et al., 2019).

    The rows' gradients g_j are by how much their copies have moved: a step of length 1 came before. Beside the memory
    rows get ``COPIED/change``, g_j - m_j with the old m_j, which is what they send: no method declares it, and it is
    gone when the round ends.

    Args:
        name: the personal value m_j.
        copied: the shared value; a rule sends ``COPIED/change`` under its name.
        rate: a; 0 for a memory that stays as it is.
        stages: what the message passes, among them C.
    """

    name: str
    copied: str
    rate: float
    stages: Sequence[Stage] = ()

    @property
    def trains(self) -> Sequence[str]:
        """The memory."""
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Takes the difference, and remembers what is decoded of it."""
        if self.name not in chunk.values:
            raise UserError(f"CompressedMemory keeps {self.name!r}, which personal() does not declare")
        memory, before = chunk.values[self.name], chunk.shared[self.copied]
        change = chunk.values[self.copied] - before - memory  # (S, 1, d)
        form = {self.copied: Field(tuple(before.shape), before.dtype)}
        pipeline = Pipeline(self.stages, (self.copied,), form)
        # The message's own noise: the server decodes the same.
        decoded = pipeline.receive(pipeline.send({self.copied: change.squeeze(1)}, chunk))[self.copied]
        moved = memory + self.rate * decoded.unsqueeze(1)
        return chunk.put({self.name: moved, change_of(self.copied): change})


def change_of(copied: str) -> str:
    """The rows' value that is sent of a shared one."""
    return f"{copied}/change"
