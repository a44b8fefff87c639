"""Local steps of clients: their part of the guide in a round, and their draws at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State
from hierfl.rng import uniforms

from .evaluating import Clients
from .guide import NOISE, ROUNDING
from .in_parts import log_joints, moments_of
from .local import Conditional, Message, OwnMoments, message, newton_step
from .marginals.sums import summed
from .marginals.transform import Marginals
from .moments import Moments, whitened_draws
from .names import (
    ACCEPTED,
    AROUND,
    CENTRING,
    KEPT,
    MEAN,
    OWN_ACCEPTED,
    OWN_MEAN,
    OWN_ROOT,
    OWN_SENT,
    OWN_SLOPE,
    OWN_VALUES,
    PHASE,
    PRECISION,
    Phase,
)
from .remembered import noted

if TYPE_CHECKING:
    from .plain import GaussianModel

#: how often half of a client's step is tried, and how often twice of it at most
HALVES, DOUBLINGS = 3, 40


@dataclass(frozen=True)
class AtSites:
    """Clients of a plate in a round: their data, their part of the guide, and the guide of the globals.

    Attributes:
        clients: data and centring.
        guide: q(v_j | x), around the mean that was broadcast.
        mean: of q(x), (p,); with clients of several fits each client's own, (S, p).
        moved: x - m at the draws of each client, (K, S, p).
        noise: draws d of each client, (K, S, q).
    """

    clients: Clients
    guide: Conditional
    mean: Tensor
    moved: Tensor
    noise: Tensor

    @classmethod
    def for_chunk(cls, method: GaussianModel, chunk: ClientChunk) -> Self:
        """The clients of a chunk, with data, guide and noise."""
        at = cls.undrawn(method, chunk)
        e, d = cls.drawn(method, chunk, at.mean)
        return replace(at, moved=method.family.moved(e, chunk.shared[PRECISION]), noise=d)

    @classmethod
    def undrawn(cls, method: GaussianModel, chunk: ClientChunk) -> Self:
        """The same without draws: data and guide."""
        values = {name: chunk.values[name].squeeze(1) for name in OWN_VALUES}
        batch, mean = chunk.batch(), chunk.shared[MEAN]
        clients = Clients(
            method.program, method.sites, method.network, method.network.stacked(batch), batch.mask, values[CENTRING],
            method.graphs, marginals=Marginals.read(chunk.shared),
        )  # fmt: skip
        around = Conditional(values[OWN_MEAN], values[OWN_SLOPE], values[OWN_ROOT], method.own_spread.to(mean.device))
        guide = around.shifted(mean - values[AROUND])
        none = mean.new_zeros(0, len(chunk.clients), 0)
        return cls(clients, guide, mean, none, none)

    @staticmethod
    def drawn(method: GaussianModel, chunk: ClientChunk, like: Tensor) -> tuple[Tensor, Tensor]:
        """Draws (e, d) of each client, (K, S, p) and (K, S, q), those of a lattice; ``like`` is the mean (p,)."""
        p, q = len(like), method.q
        fine = int(chunk.shared[PHASE]) != Phase.ROUGH
        stream = [uniforms(chunk.keys, chunk.seed, "lattice", fine, i) for i in range(p + q)]
        shift = torch.stack(stream, -1).to(like) if stream else like.new_zeros(len(chunk.clients), 0)
        e, d = whitened_draws(shift, method.draws_of_round(fine=fine)).split([p, q], -1)
        return e, d

    def some(self, first: int, last: int) -> Self:
        """Clients first..last-1 of these."""
        mean = self.mean[first:last] if self.mean.dim() == 2 else self.mean
        return replace(
            self, clients=self.clients.some(first, last), guide=self.guide.some(first, last), mean=mean,
            moved=self.moved[:, first:last], noise=self.noise[:, first:last],
        )  # fmt: skip

    @property
    def moments(self) -> Moments:
        """Expected derivatives of the clients' log joints."""
        return moments_of(self.clients, self.mean + self.moved, self.guide.draws(self.moved, self.noise))

    def expected(self) -> OwnMoments:
        """Those by their own latents at least."""
        return self.moments

    @property
    def bound(self) -> Tensor:
        """E[h_j] + H[q(v_j | x)], (S,)."""
        x = self.mean + self.moved
        return log_joints(self.clients, x, self.guide.draws(self.moved, self.noise)).mean(0) + self.guide.entropy

    def stepped(self) -> Self:
        """Takes one Newton step of the clients' part. A client whose bound has fallen halves its step."""
        before = self.guide
        if not before.mean.shape[-1]:
            return self
        expected = self.expected()
        least = expected.height + before.entropy
        least = least - NOISE * before.mean.shape[-1] - ROUNDING * least.abs()
        guide, shortened = newton_step(before, expected, self.mean.shape[-1])
        at = replace(self, guide=guide)
        for _ in range(HALVES):
            bound = at.bound
            risen = (bound >= least) | ~least.isfinite()
            if bool(risen.all()):
                return at.further(before, expected, shortened, bound)
            at = replace(at, guide=at.guide.where(risen, at.guide.halfway(before)))
        return replace(at, guide=at.guide.where((at.bound >= least) | ~least.isfinite(), before))

    def further(self, before: Conditional, expected: OwnMoments, shortened: Tensor, bound: Tensor) -> Self:
        """Moves the means of clients whose step was cut as far as the bound rises: all the way, or twice as far, ...

        Far from a client's data the curvature gives short standard deviations: the mean is many of them away.

        Args:
            before: the guide before the step.
            expected: expected derivatives there.
            shortened: which clients, (S,).
            bound: here, (S,).
        """
        at = self
        if not bool(shortened.any()):
            return at
        whole, _ = newton_step(before, expected, self.mean.shape[-1], math.inf)
        for k in range(DOUBLINGS):
            mean = whole.mean if not k else 2 * at.guide.mean - before.mean
            longer = replace(at, guide=replace(at.guide, mean=torch.where(shortened[:, None], mean, at.guide.mean)))
            risen = shortened & (longer.bound > bound)
            at = replace(at, guide=longer.guide.where(risen, at.guide))
            bound = torch.where(risen, longer.bound, bound)
            shortened = shortened if not k else risen
            if not bool(shortened.any()):
                break
        return at

    def centred(self) -> Self:
        """Chooses each latent's centring by what the data say of it, and turns the guide into those numbers.

        Of u ~ N(loc, scale^2) whose data have the precision k, globals and the number v that is given decouple at
        c = k / (k + scale^-2) (Papaspiliopoulos, Roberts and Skoeld, 2003): one less the ratio of the conditional
        posterior variance to the prior's. By the bound itself hardly anything is gained: at its optimum in c, sums over
        clients are within 0.04 of those at the formula's. A client whose bound would fall keeps the centring it has.
        """
        if not self.clients.sites.centred:
            return self
        c, guide = self.clients.centring, self.guide
        _, scale = self.clients.locations_and_scales(self.mean.expand(len(c), -1), guide.mean)
        spread = guide.root.square().sum(-1).sqrt() * scale ** (1 - c)
        has = self.clients.has_centring.to(c.device)
        new = torch.where(has, (1 - (spread / scale).square()).clamp(0, 1), 1.0)
        new = torch.where(new.isfinite(), new, c)
        at = self.recentred(new)
        risen = at.bound >= self.bound - NOISE * guide.mean.shape[-1]
        new = torch.where(risen[:, None], new, c)
        return replace(self, clients=replace(self.clients, centring=new), guide=at.guide.where(risen, guide))

    def recentred(self, new: Tensor) -> Self:
        """Changes the centring (S, q), and the guide with it, to first order around its mean."""
        guide = self.guide
        mean, by_x, by_v = self.clients.recentred(self.mean.expand(len(new), -1), guide.mean, new)
        made = replace(guide, mean=mean, slope=by_x + by_v @ guide.slope, root=by_v @ guide.root)
        return replace(self, clients=replace(self.clients, centring=new), guide=made)

    def message(self) -> Message:
        """The clients' bounds and their derivatives by the globals."""
        return message(self.guide, self.moments)

    def counted(self, chunk: ClientChunk) -> State:
        """What the message leaves with the clients, see :func:`.remembered.noted`."""
        sent = self.message()
        v = self.guide.draws(self.moved, self.noise)
        return noted(chunk, sent, *summed(chunk, self.clients, sent, self.moved, v))

    def values(self) -> State:
        """What is kept of the clients, {name: (S, 1, *shape)}."""
        around = self.mean.expand(len(self.guide.mean), -1)
        own = dict(
            zip(
                OWN_VALUES,
                (self.guide.mean, self.guide.slope, self.guide.root, around, self.clients.centring),
                strict=True,
            )
        )
        return {name: value.unsqueeze(1) for name, value in own.items()}


@dataclass(frozen=True)
class FitConditional:
    """A local step: q(v_j | x) by Newton steps in expectation, at the globals' guide that was broadcast.

    Args:
        method: whose model.
    """

    method: GaussianModel

    @property
    def trains(self) -> Sequence[str]:
        """The clients' part of the guide, and what counts of them."""
        return (*OWN_VALUES, *KEPT, OWN_ACCEPTED, OWN_SENT)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Fits the clients' part from the last guide that was kept, while the guide climbs."""
        stage = Phase(int(chunk.shared[PHASE]))
        if stage > Phase.FINE:
            return chunk
        chunk = kept(chunk)
        return self.climbed(chunk, AtSites.for_chunk(self.method, chunk), rough=stage == Phase.ROUGH)

    def climbed(self, chunk: ClientChunk, at: AtSites, *, rough: bool) -> ClientChunk:
        """The clients after the round's steps, from ``at``."""
        if rough:
            at = at.centred()
        for _ in range(self.method.settings.local_steps):
            at = at.stepped()
        return chunk.put({**at.values(), **at.counted(chunk)})


def kept(chunk: ClientChunk) -> ClientChunk:
    """Resets the clients' part to the round's start. Where the guide was taken back, theirs is taken back, too."""
    accepted, number = chunk.values[OWN_ACCEPTED], chunk.shared[ACCEPTED]
    newer = accepted < number
    own = {}
    for name, kept in zip(OWN_VALUES, KEPT, strict=True):
        value = chunk.values[name]
        own[name] = own[kept] = torch.where(newer.view(-1, *(1,) * (value.ndim - 1)), value, chunk.values[kept])
    return chunk.put(own | {OWN_ACCEPTED: number.expand_as(accepted)})
