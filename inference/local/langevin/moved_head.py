"""Draws of a head at draws of the shared values, each moved by a chain of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hierfl.rng import ClientNoise

from ...state import State
from ..laplace.posterior import AtDraws
from ..laplace.step import GaussianHead
from ..laplace.target import Target as HeadTarget
from .chain import Chain
from .names import stats_of
from .reference import Coordinates
from .target import Target


@dataclass(frozen=True, kw_only=True)
class MovedHead(GaussianHead):
    """Gaussian draws in the end that Metropolis-adjusted steps move to the posterior.

    Each of the K draws begins a chain, the shared values held at its own draw of them; its last state is kept. So draws
    are independent, and what the Gaussian gets wrong goes by the length of the chains. Beside them rows get
    ``LATENT_draws/stats``, see :data:`~hierfl.inference.local.langevin.names.STATS`.

    Args:
        chain: how they move; its last step is what is kept.
        step_size: in coordinates in which the posterior is near to a standard normal.
        since: draws are left as they are before this round.
    """

    chain: Chain
    step_size: float
    since: int = 0

    def _final(self, target: HeadTarget, places: Iterator[AtDraws]) -> State:
        chunk = target.chunk
        if chunk.round < self.since:
            return super()._final(target, places)
        fresh = self._noise(target, self.final, ())
        draws, rows = torch.empty_like(fresh), len(chunk.clients)
        stats = fresh.new_empty((rows, 1, 1, self.final, 3))
        for number, at in enumerate(places):
            part = at.target.chunk
            density = Target(part)
            density.maps = {self.latent: Coordinates.from_curvature(at.centre, at.r, at.h, at.scaled, target.order)}
            stream = (chunk.seed, chunk.round, "moved head", number)
            noise = ClientNoise(chunk.keys.to(chunk.n.device), stream, len(at.places), dtype=target.dtype)
            with torch.enable_grad():
                given = density.density(at.target.batch, at.target.frozen)
                kept, _, stats_of_chains = self.chain.run(
                    {self.latent: fresh[at.places][:, :, None]},
                    fresh.new_full((len(at.places), rows), self.step_size),
                    noise.reading(self.chain.steps),
                    lambda given=given: given,  # type: ignore[misc]
                    density.constrained,
                )
            draws[at.places] = kept[self.latent][:, 0, :, -1].transpose(0, 1)[..., target.order]
            stats[:, 0, 0, at.places] = stats_of_chains[:, 0, :, -1]
        return {**self._kept(target, draws), stats_of(self.latent): stats}
