"""The base waits at the start until spreads have converged: otherwise it would fit the errors of a bad start."""

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
    """A step that is not taken while a shared value is 1. The values that it trains are sent unchanged.

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
    """Whether the base waits in the next round: 1 or 0, (1,). Once training has begun it does not wait again.

    Args:
        waits: whether it has waited in this round.
        log_rho: before the step, (B,).
        moved: after the step, (B,).
        rounds: the most rounds for which it waits.
        context: of the round.
    """
    moves = ((moved - log_rho).abs() > SETTLED) & (moved > LEAST_LOG)
    # A step that is taken again is shorter than it was meant, and the first one is of posteriors without a width.
    moves = moves.any() | (context.rule_state["tries"] > 0).any() | (context.round < 2)
    return waits * (moves & (context.round < rounds)).to(waits)
