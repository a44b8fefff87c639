"""Draws of a client's label shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hierfl.devices import send
from hierfl.rng import ClientNoise

from ..clients.chunk import ClientChunk
from ..server.rules.label_shares import LabelSharePopulation

#: the logarithm of the share of a class that a draw leaves out: a number whose exponential is zero
ABSENT = -1e4


@dataclass(frozen=True)
class DrawShares:
    """Draws of a client's label shares from their posterior given its counts, at the end; never sent.

    Args:
        name: the personal value that has their logarithms, (1, K, C).
        population: the rule that learns the population.
        number: K.
    """

    name: str
    population: LabelSharePopulation
    number: int

    @property
    def trains(self) -> Sequence[str]:
        """The draws."""
        return (self.name,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Draws in every row, each with its client's own noise."""
        counts = chunk.values[self.population.counts].squeeze(1)
        given = self.population.population(chunk.shared, counts)
        noise = ClientNoise(send(chunk.keys, counts.device), (chunk.seed, self.name), self.number, dtype=given.n.dtype)
        u = noise.uniform(self.name, 1, torch.Size([3 * given.classes + 2])).squeeze(2)  # (K, S, 3 C + 2)
        drawn = given.draws(u.clamp(1e-12, 1 - 1e-12)).log().clamp_min(ABSENT).to(chunk.values[self.name])
        return chunk.put({self.name: drawn.transpose(0, 1)[:, None, None]})
