"""The base waits at the start until spreads have settled: it is not to learn what a bad start leaves to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep
from hierfl.inference.server.rules.base import AggregationContext
from hierfl.inference.server.rules.scoring import LEAST_LOG

#: a logarithm of a spread has settled where it moves by less in a round
SETTLED = 0.1


@dataclass(frozen=True)
class Waiting:
    """A step that is not taken while a shared value is 1: what it trains is sent as it is.

    Args:
        step: the step.
        switch: the shared value, (1,).
    """

    step: LocalStep
    switch: str

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The step, or copies of the values as they are."""
        if not bool(chunk.shared[self.switch] > 0):
            return self.step.run(chunk, phase)
        return chunk.own(k for name in self.trains for k in chunk.method.expand(name, chunk.view))


def waits_on(waits: Tensor, log_rho: Tensor, moved: Tensor, rounds: int, context: AggregationContext) -> Tensor:
    """Whether the base waits in the next round, too: 1 or 0, (1,). Once it is trained it does not wait again.

    Args:
        waits: whether it has waited in this round.
        log_rho: where the step began, (B,).
        moved: where it has led, (B,).
        rounds: for which it waits at most.
        context: of the round.
    """
    moves = ((moved - log_rho).abs() > SETTLED) & (moved > LEAST_LOG)
    # A step that is taken again is shorter than it was meant, and the first one is of posteriors without a width.
    moves = moves.any() | (context.rule_state["tries"] > 0).any() | (context.round < 2)
    return waits * (moves & (context.round < rounds)).to(waits)
