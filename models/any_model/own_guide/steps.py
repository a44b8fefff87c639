"""What clients do with a user's guide: steps of their own parameters, and draws at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hierfl import philox
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State
from hierfl.rng import key, normals

from ..heights import Heights, relative_variance
from ..moments import whitened_draws
from ..names import CENTRING, DRAWS, INNER, OWN_DRAWS, PHASE, Phase
from .adam import Adam
from .bound import CELLS, Parts
from .names import OWN_ENDED, OWN_FIRST, OWN_PARAMS, OWN_SECOND, OWN_STEPS, PARAMS, RATE
from .run import OWN_STREAM, SHARED_STREAM, log_density, values_of

if TYPE_CHECKING:
    from hierfl.data.column_batch import ColumnBatch

    from .guided import Guided

#: most numbers of a draw of everyone's whose draws of a round have exact mean and covariance
WHITENED = 32


def shared_noise(method: Guided, draws: int, *parts: object) -> Tensor:
    """Standard normals of the globals, (K, G), the same for all clients and the server: half of them mirrored."""
    return _noise(method.users_guide.taken.get(SHARED_STREAM, 0), draws // 2, parts)


@lru_cache(maxsize=16)
def _noise(width: int, half: int, parts: tuple[object, ...]) -> Tensor:
    """The same, kept: what globals are followed by, and their draws, have one noise in all rounds."""
    if 0 < width <= WHITENED and half > width:
        shift = torch.special.ndtr(normals(torch.Size([1, width]), *parts, dtype=torch.float64))
        return whitened_draws(shift, 2 * half)[:, 0]
    z = normals(torch.Size([half, width]), *parts, dtype=torch.float64)
    return torch.cat([z, -z])


def bound_noise(method: Guided, seed: int, round: int) -> Tensor:
    """Standard normals of the globals for the bound of the final guide, (K, G); K is even."""
    return shared_noise(method, method.settings.points, *_bound_key(seed, round))


def _bound_key(seed: int, round: int) -> tuple[object, ...]:
    return seed, round, "bound"


def own_noise(method: Guided, chunk: ClientChunk, draws: int, *parts: object, mirrored: bool = True) -> Tensor:
    """Standard normals of each client, (K, S, O); half of them mirrored."""
    width, count = method.users_guide.taken.get(OWN_STREAM, 0), draws // 2 if mirrored else draws
    z = philox.normals(chunk.keys, key(*parts), 0, count * width, torch.float64)
    z = z.reshape(len(chunk.clients), count, width).movedim(0, 1).to(chunk.federation.device)
    return torch.cat([z, -z]) if mirrored else z


@dataclass(frozen=True)
class OwnRows:
    """Clients of a plate: their data and their own parameters.

    Attributes:
        method: whose model and guide.
        chunk: the clients.
        columns: (S, columns, n).
        mask: (S, n), or None.
    """

    method: Guided
    chunk: ClientChunk
    columns: Tensor
    mask: Tensor | None

    @classmethod
    def for_chunk(cls, method: Guided, chunk: ClientChunk) -> OwnRows:
        """The clients of a chunk, with their stacked batch."""
        batch = chunk.batch()
        stacked = method.network.stacked(batch)
        return cls(method, chunk, *method.network.lengthened(stacked, batch.mask, method.sites.rows))

    @property
    def parts(self) -> Parts:
        """Model and guide."""
        return self.method.parts

    def shared(self) -> Tensor:
        """A copy of the shared parameters for each client, (S, P)."""
        return self.chunk.shared[PARAMS].expand(len(self.chunk.clients), -1).clone()

    def bound(self, shared: Tensor, own: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
        """L_j at draws, (S,)."""
        return self.parts.over_clients(self.parts.client, self.columns, self.mask, (shared, own), noise).mean(0)

    def noise(self, *parts: object) -> tuple[Tensor, Tensor]:
        """The noise of a step or a message."""
        chunk, draws = self.chunk, self.method.fit_draws
        key_of = (chunk.seed, chunk.round, *parts)
        return shared_noise(self.method, draws, *key_of), own_noise(self.method, chunk, draws, *key_of)

    def message(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """L_j (S,), and its gradient by the shared parameters (S, P)."""
        shared = self.shared().requires_grad_()
        with torch.enable_grad():
            bound = self.bound(shared, own, self.noise("message"))
            gradient = _gradient(bound.sum(), shared)
        return bound.detach(), gradient

    def climbed(self, own: Tensor, adam: Adam, rate: Tensor | float, number: object) -> tuple[Tensor, Adam]:
        """One step of the clients' own parameters (S, R)."""
        at = own.detach().requires_grad_()
        with torch.enable_grad():
            bound = self.bound(self.shared(), at, self.noise("step", number))
            gradient = _gradient(bound.sum(), at)
        adam, move = adam.step(gradient, rate)
        return own + move, adam

    def last_averaged(self, own: Tensor) -> Tensor:
        """The clients' own parameters (S, R) at the final shared ones: the mean of the last half of ever shorter steps.

        Steps go on as they were in the last round. First steps of the fit's beginning would lead away from where a
        client has come to; they are for a client that has taken fewer steps than these.
        """
        count, first = self.method.settings.last_steps, self.method.settings.rate
        before = (self.chunk.values[name].squeeze(1) for name in (OWN_FIRST, OWN_SECOND, OWN_STEPS))
        adam, total = Adam(*before), torch.zeros_like(own)
        longest = torch.where(adam.steps < count, first, self.chunk.shared[RATE])
        for i in range(count):
            own, adam = self.climbed(own, adam, longest * (1 + math.cos(math.pi * i / count)) / 2, ("last", i))
            total = total + own if 2 * i >= count else total
        return total / (count - (count + 1) // 2) if count else own

    def final_bound(self, own: Tensor) -> Tensor:
        """L_j (S,) by as many draws as are weighed, of a noise of their own."""
        method, chunk = self.method, self.chunk
        of_all = bound_noise(method, chunk.seed, chunk.round)
        of_clients = own_noise(method, chunk, len(of_all), *_bound_key(chunk.seed, chunk.round))
        most, total = max(1, CELLS // max(1, self.columns.shape[0] * self.columns.shape[-1])), torch.zeros(())
        with torch.no_grad():
            for first in range(0, len(of_all), most):
                noise = of_all[first : first + most], of_clients[first : first + most]
                params = (self.shared(), own)
                total = total + self.parts.over_clients(
                    self.parts.client, self.columns, self.mask, params, noise
                ).sum(0)  # fmt: skip
        return total / len(of_all)

    def drawn(self, own: Tensor, noise: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Draws of the clients' latents (K, S, q), log p(y_j, v_j | z) of each and log q(v_j | z), (K, S)."""
        parts, guide = self.parts, self.method.users_guide

        def for_client(
            batch: ColumnBatch, shared: Tensor, own: Tensor, noise: dict[str, Tensor]
        ) -> tuple[Tensor, Tensor, Tensor]:
            trace = guide.run(batch, shared, own, noise)
            values = values_of(trace)
            log_q = log_density(trace, batch.mask, ("client", "data"))
            return parts.unconstrained(values)[1], parts.own_height(batch, values), log_q

        parts_drawn = parts.over_clients(for_client, self.columns, self.mask, (self.shared(), own), noise)
        return parts_drawn[0], parts_drawn[1], parts_drawn[2]


def _gradient(total: Tensor, by: Tensor) -> Tensor:
    if not by.numel() or not total.requires_grad:
        return torch.zeros_like(by)
    return torch.autograd.grad(total, by, materialize_grads=True)[0]


def own_heights(
    method: Guided, chunk: ClientChunk, noise: Tensor, inner: int, purpose: str, *, pick: bool = False
) -> Heights:
    """Estimates of log p(y_j | z) at draws of the globals, each with fresh draws of the clients' latents.

    Args:
        method: whose model and guide.
        chunk: the clients.
        noise: of the globals' draws, (M, G).
        inner: I, draws of the latents at each.
        purpose: keys these, beside seed and round.
        pick: whether latents are picked among the draws by their weights; else they are the guide's.
    """
    rows, own = OwnRows.for_chunk(method, chunk), chunk.values[OWN_PARAMS].squeeze(1)
    most = max(1, CELLS // max(1, inner * rows.columns.shape[0] * rows.columns.shape[-1]))
    parts = []
    for first in range(0, len(noise), most):
        some = noise[first : first + most]
        noise_of_clients = own_noise(
            method, chunk, inner * len(some), chunk.seed, chunk.round, purpose, first, mirrored=False
        )
        with torch.no_grad():
            v, height, log_q = rows.drawn(own, (some.repeat(inner, 1), noise_of_clients))
        weight = (height - log_q).unflatten(0, (inner, -1))
        weight = torch.where(weight.isfinite(), weight, -math.inf)
        total = weight.logsumexp(0)
        share = (weight - total.clamp_min(-1e300)).exp()
        v = v.unflatten(0, (inner, -1))
        if pick:
            u = philox.normals(chunk.keys, key(chunk.seed, chunk.round, purpose, "picks", first), 0, len(some),
                               torch.float64)  # fmt: skip
            chosen = (share.cumsum(0) < torch.special.ndtr(u).T.to(share)).sum(0).clamp(max=inner - 1)
            latents = v.gather(0, chosen[None, ..., None].expand(1, -1, -1, v.shape[-1]))[0]
        else:
            latents = v[0]
        parts.append((total - math.log(inner), relative_variance(share), latents))
    height, variance, drawn = (torch.cat(part) for part in zip(*parts, strict=True))
    return Heights(height, variance, lambda: drawn)


@dataclass(frozen=True)
class FitOwn:
    """A local step: Adam's steps of a client's own parameters, at the shared ones that were broadcast.

    Args:
        method: whose model and guide.
    """

    method: Guided

    @property
    def trains(self) -> Sequence[str]:
        """The client's parameters."""
        return (OWN_PARAMS, OWN_FIRST, OWN_SECOND, OWN_STEPS, OWN_ENDED)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Some steps while the shared parameters move; all of the rest where they have stopped."""
        stage, names = Phase(int(chunk.shared[PHASE])), (OWN_PARAMS, OWN_FIRST, OWN_SECOND, OWN_STEPS)
        if not chunk.values[OWN_PARAMS].numel() or stage == Phase.DONE:
            return chunk
        if stage == Phase.EXPLORE:
            return ended(self.method, chunk)
        own, first, second, steps = (chunk.values[name].squeeze(1) for name in names)
        rows, adam = OwnRows.for_chunk(self.method, chunk), Adam(first, second, steps)
        for i in range(self.method.settings.local_steps):
            own, adam = rows.climbed(own, adam, chunk.shared[RATE], i)
        made = zip(names, (own, adam.first, adam.second, adam.steps), strict=True)
        return chunk.put({name: value.unsqueeze(1) for name, value in made})


def ended(method: Guided, chunk: ClientChunk) -> ClientChunk:
    """Fits the clients' own parameters at the last shared ones, once for all later rounds."""
    before, done = chunk.values[OWN_PARAMS], chunk.values[OWN_ENDED]
    if bool((done > 0).all()) or not before.numel():
        return chunk
    made = OwnRows.for_chunk(method, chunk).last_averaged(before.squeeze(1)).unsqueeze(1)
    return chunk.put({OWN_PARAMS: torch.where(done.unsqueeze(-1) > 0, before, made), OWN_ENDED: torch.ones_like(done)})


@dataclass(frozen=True)
class DrawOwn:
    """A local step after the last round: each client's latents at each kept draw of the globals, by the guide.

    Args:
        method: whose model and guide.
    """

    method: Guided

    @property
    def trains(self) -> Sequence[str]:
        """The client's draws in the model's own form, and its parameters where they are not at their end."""
        return (OWN_DRAWS, CENTRING, OWN_PARAMS, OWN_ENDED)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """One draw for each."""
        chunk = ended(self.method, chunk)
        noise = self.method.kept_noise(len(chunk.shared[DRAWS]), chunk.seed)
        estimates = own_heights(self.method, chunk, noise, 1, "posterior")
        drawn = estimates.latents.movedim(0, 1).unsqueeze(1)
        return chunk.put({OWN_DRAWS: drawn, CENTRING: drawn.new_ones(len(drawn), 1, drawn.shape[-1])})


def sent(method: Guided, chunk: ClientChunk) -> State:
    """What a round asks of each client, (S, ...) each."""
    rows, stage = OwnRows.for_chunk(method, chunk), Phase(int(chunk.shared[PHASE]))
    if stage <= Phase.FINE:
        bound, gradient = rows.message(chunk.values[OWN_PARAMS].squeeze(1))
        return {"bound": bound, "gradient": gradient}
    if stage != Phase.EXPLORE:
        return {}
    made = {"bound": rows.final_bound(chunk.values[OWN_PARAMS].squeeze(1))}
    if method.checks:
        noise = method.check_noise(chunk.seed)
        estimates = own_heights(method, chunk, noise, int(chunk.shared[INNER]), "check")
        made |= {"heights": estimates.height.T, "noise": estimates.variance.median(0).values}
    return made
