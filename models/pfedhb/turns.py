"""Rounds in which a part's posteriors move. No gradient flows through them, so they need not move in every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.local.base import LocalStep


@dataclass(frozen=True)
class Turns:
    """Rounds in which a part has its turn.

    A part that may enter has its turn in every round until that is decided. One that has not entered has none later.

    Args:
        every: the part has its turn in one of so many rounds, the first.
        switch: the shared value that is 1 where the part is in the model; "" for one that always is.
        judged: the round after which that is decided.
    """

    every: int = 1
    switch: str = ""
    judged: int = 0

    def __call__(self, number: int, shared: Mapping[str, Tensor]) -> bool:
        """Whether it has its turn in this round, counted from one, given what was broadcast."""
        if self.switch:
            if number <= self.judged:
                return True
            if not bool(shared[self.switch] > 0):
                return False
        return (number - 1) % self.every == 0


@dataclass(frozen=True)
class InTurns:
    """A step on personal values that is taken in some rounds; in the others the values stay.

    Args:
        step: the step.
        turns: the rounds.
    """

    step: LocalStep
    turns: Turns

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows after the step, or as they are."""
        return self.step.run(chunk, phase) if self.turns(chunk.round, chunk.shared) else chunk


@dataclass(frozen=True)
class Restart:
    """A step on posteriors that first go back to their start, in rounds in which the server's switch is 1.

    Args:
        step: the step.
        switch: the shared value that is 1 in these rounds.
        mean, away: personal values: the mean, and deviations from it ("" for none).
        centre: the shared value that the mean goes back to.
    """

    step: LocalStep
    switch: str
    mean: str
    away: str
    centre: str

    @property
    def trains(self) -> Sequence[str]:
        """What the step trains."""
        return self.step.trains

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """The rows after the step."""
        restart, mean = chunk.shared[self.switch] > 0, chunk.values[self.mean]
        begun = {self.mean: torch.where(restart, chunk.shared[self.centre].expand_as(mean), mean)}
        if self.away:
            away = chunk.values[self.away]
            begun[self.away] = torch.where(restart, torch.zeros_like(away), away)
        return self.step.run(chunk.put(begun), phase)
