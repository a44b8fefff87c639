"""The clients' part of a round, for a guide with many globals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from hierfl import philox
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State
from hierfl.rng import key, uniforms

from ..local import OwnMoments
from ..moments import whitened_draws
from ..names import MEAN, PHASE, PRECISION, Phase
from ..plain import GaussianModel
from ..remembered import noted
from ..steps import AtSites, FitConditional, kept
from .family import LowRankFamily
from .products import PROBES, Derivatives, SketchedBound, height_beyond, rows, sketched
from .sketch import along, directions

#: numbers of draws x clients x globals that are held at once
CELLS = 4_000_000


@dataclass(frozen=True)
class SketchedSites(AtSites):
    """Clients of a plate in a round: see :class:`..steps.AtSites`."""

    @staticmethod
    def drawn(method: GaussianModel, chunk: ClientChunk, like: Tensor) -> tuple[Tensor, Tensor]:
        """Draws (e, d), (K, S, p) and (K, S, q): of many globals independent ones, beside their mirror images."""
        p = len(like)
        if method.rank >= p:
            return AtSites.drawn(method, chunk, like)
        fine = int(chunk.shared[PHASE]) != Phase.ROUGH
        draws = method.draws_of_round(fine=fine)
        stream = [uniforms(chunk.keys, chunk.seed, "lattice", fine, i) for i in range(method.q)]
        shift = torch.stack(stream, -1).to(like) if stream else like.new_zeros(len(chunk.clients), 0)
        e = philox.normals(chunk.keys, key(chunk.seed, "globals", fine), 0, draws // 2 * p, like.dtype).to(like)
        e = e.reshape(len(chunk.clients), draws // 2, p).movedim(0, 1)
        return torch.cat([e, -e]), whitened_draws(shift, draws)

    @property
    def _derivatives(self) -> Derivatives:
        return Derivatives(
            self.clients.log_joint, self.mean + self.moved, self.guide.draws(self.moved, self.noise)
        )  # fmt: skip

    def expected(self) -> OwnMoments:
        """Expected derivatives by the clients' own latents."""
        return rows(self._derivatives, len(self.mean))

    def sketched_bound(self, method: GaussianModel, chunk: ClientChunk) -> SketchedBound:
        """The clients' bounds and their derivatives by the globals."""
        w = directions(len(self.mean), method.rank, chunk.seed).to(self.mean)
        bound = sketched(self._derivatives, self.guide, w, self._signs(chunk))
        if method.rank >= len(w) or not bool(method.family.spread.any()):
            return bound
        block = cast("LowRankFamily", method.family).of_spread(chunk.shared[PRECISION])
        above = height_beyond(bound, w, self.moved, block, method.family.spread.to(w.device))
        return replace(bound, bound=bound.bound - above)

    def _signs(self, chunk: ClientChunk) -> Iterator[Tensor]:
        """Vectors of 1 and -1 of each draw and client, (K, S, p), the same in all rounds."""
        shape = self.moved.shape
        for i in range(PROBES):
            z = philox.normals(chunk.keys, key(chunk.seed, "signs", i), 0, shape[0] * shape[2], self.mean.dtype)
            z = z.reshape(shape[1], shape[0], shape[2]).movedim(0, 1).to(self.mean)
            yield torch.where(z < 0, -1.0, 1.0).to(z)


@dataclass(frozen=True)
class FitSketched(FitConditional):
    """A local step: q(v_j | x) by Newton steps in expectation, and a sketch of the curvature by x."""

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Fits the clients' part from the last guide that was kept, while the guide climbs."""
        stage = Phase(int(chunk.shared[PHASE]))
        if stage > Phase.FINE:
            return chunk
        chunk, count = kept(chunk), len(chunk.clients)
        cells_of_client = self.method.draws_of_round(fine=stage == Phase.FINE) * max(1, len(chunk.shared[MEAN]))
        many = max(1, CELLS // cells_of_client)
        parts = [self._part(chunk.take(range(k, min(count, k + many))), stage) for k in range(0, count, many)]
        return chunk.put({name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def _part(self, chunk: ClientChunk, stage: Phase) -> State:
        at = SketchedSites.for_chunk(self.method, chunk)
        if stage == Phase.ROUGH:
            at = at.centred()
        for _ in range(self.method.settings.local_steps):
            at = at.stepped()
        bound = at.sketched_bound(self.method, chunk)
        w = directions(len(at.mean), self.method.rank, chunk.seed).to(at.mean)
        curvature = torch.cat([bound.diagonal, bound.sketch.flatten(1)], 1)
        return {**at.values(), **noted(chunk, bound, curvature, along(bound.diagonal, bound.sketch, w, at.mean))}
