"""What clients do whose rows have latents of their own: their part of the guide in a round, and draws at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.func import jacrev, vjp, vmap

from hierfl import philox
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State
from hierfl.rng import key, uniforms

from ..evaluating import Clients
from ..guide import NOISE, ROUNDING
from ..local import Message
from ..log_joint import locations_and_scales
from ..marginals.sums import summed
from ..marginals.transform import Marginals, gaussian, unconstrained
from ..moments import whitened_draws
from ..names import (
    AROUND,
    CENTRING,
    DRAWS,
    KEPT,
    MEAN,
    OWN_ACCEPTED,
    OWN_DRAWS,
    OWN_MEAN,
    OWN_ROOT,
    OWN_SENT,
    OWN_SLOPE,
    OWN_VALUES,
    PHASE,
    PRECISION,
    Phase,
)
from ..remembered import noted
from ..steps import HALVES, kept
from .arrow import Arrow, arrow_moments, message, newton_step
from .layout import Layout

if TYPE_CHECKING:
    from ..plain import GaussianModel

#: draws x clients x rows of a log joint and its derivatives that are held at once
CELLS = 500_000


@dataclass(frozen=True)
class ArrowRows:
    """Clients of a plate in a round; see :class:`..steps.AtSites`.

    Attributes:
        clients: data and centring.
        guide: their part of it, around the mean that was broadcast.
        mean, root: of q(x), (p,) and (p, p).
        noise: draws of each client, (K, S, p), (K, S, c) and (K, S, n, r).
    """

    clients: Clients
    guide: Arrow
    mean: Tensor
    root: Tensor
    noise: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def for_chunk(cls, method: GaussianModel, layout: Layout, chunk: ClientChunk) -> ArrowRows:
        """The clients of a chunk, with data, guide and noise."""
        values = {name: chunk.values[name].squeeze(1) for name in OWN_VALUES}
        batch, mean = chunk.batch(), chunk.shared[MEAN]
        clients = Clients(
            method.program, method.sites, method.network, method.network.stacked(batch), batch.mask, values[CENTRING],
            marginals=Marginals.read(chunk.shared),
        )  # fmt: skip
        guide = Arrow.unpacked(layout, values[OWN_MEAN], values[OWN_SLOPE], values[OWN_ROOT], len(mean))
        guide = guide.shifted(mean - values[AROUND])
        fine = int(chunk.shared[PHASE]) != Phase.ROUGH
        noise = _noise(chunk, layout, len(mean), method.draws_of_round(fine=fine), fine=fine)
        return cls(clients, guide, mean, method.family.root(chunk.shared[PRECISION]), noise)

    @property
    def moved(self) -> Tensor:
        """x - m at the draws, (K, S, p)."""
        return self.noise[0] @ self.root.T

    @property
    def bound(self) -> Tensor:
        """E[h_j] + H[q(v_j | x)], (S,)."""
        v = self.guide.draws(self.moved, *self.noise[1:])
        with torch.no_grad():
            return self.clients.log_joint(self.mean + self.moved, v).mean(0) + self.guide.entropy

    def stepped(self) -> ArrowRows:
        """Takes one Newton step of the clients' part; a client whose bound has fallen goes back, half by half."""
        before, p = self.guide, len(self.mean)
        expected = arrow_moments(
            self.clients.log_joint, self.mean + self.moved, before.draws(self.moved, *self.noise[1:]), before.layout
        )
        least = expected.height + before.entropy
        least = least - NOISE * self.clients.centring.shape[-1] - ROUNDING * least.abs()
        at = replace(self, guide=newton_step(before, expected, p))
        for _ in range(HALVES):
            risen = (at.bound >= least) | ~least.isfinite()
            if bool(risen.all()):
                return at
            at = replace(at, guide=at.guide.where(risen, at.guide.halfway(before)))
        return replace(at, guide=at.guide.where((at.bound >= least) | ~least.isfinite(), before))

    def centred(self) -> ArrowRows:
        """Chooses each latent's centring by what the data say of it; see :meth:`..steps.AtSites.centred`."""
        has, c, guide = self.clients.has_centring.to(self.mean.device), self.clients.centring, self.guide
        if not has.any():
            return self
        x = self.mean.expand(len(c), -1)
        _, scale = self.clients.locations_and_scales(x, guide.packed()[0])
        spread = guide.spread * scale ** (1 - c)
        new = torch.where(has, (1 - (spread / scale).square()).clamp(0, 1), 1.0)
        new = torch.where(new.isfinite(), new, c)
        made = guide.recentred(*recentred(self.clients, x, guide.packed()[0], new, guide.layout))
        at = replace(self, clients=replace(self.clients, centring=new), guide=made)
        risen = at.bound >= self.bound - NOISE * c.shape[-1]
        new = torch.where(risen[:, None], new, c)
        return replace(self, clients=replace(self.clients, centring=new), guide=made.where(risen, guide))

    def message(self) -> Message:
        """The clients' bounds and their derivatives by the globals."""
        v = self.guide.draws(self.moved, *self.noise[1:])
        expected = arrow_moments(self.clients.log_joint, self.mean + self.moved, v, self.guide.layout)
        return message(self.guide, expected)

    def counted(self, chunk: ClientChunk) -> State:
        """What the message leaves with the clients, see :func:`..remembered.noted`."""
        sent = self.message()
        v = self.guide.draws(self.moved, *self.noise[1:])
        return noted(chunk, sent, *summed(chunk, self.clients, sent, self.moved, v))

    def values(self) -> State:
        """What is kept of the clients, {name: (S, 1, *shape)}."""
        around = self.mean.expand(len(self.clients.centring), -1)
        own = dict(zip(OWN_VALUES, (*self.guide.packed(), around, self.clients.centring), strict=True))
        return {name: value.unsqueeze(1) for name, value in own.items()}


def _noise(chunk: ClientChunk, layout: Layout, p: int, draws: int, *, fine: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Draws whose means are 0, and whose covariances are exactly 1 of globals, client and any one row together."""
    c, n, r = layout.sizes
    device, half = chunk.federation.device, draws // 2
    stream = [uniforms(chunk.keys, chunk.seed, "lattice", fine, i) for i in range(p + c)]
    shift = torch.stack(stream, -1).to(device) if stream else torch.zeros(len(chunk.clients), 0).double().to(device)
    first = whitened_draws(shift, draws)
    z = philox.normals(chunk.keys, key(chunk.seed, "rows", fine), 0, half * n * r, torch.float64).to(device)
    z = z.reshape(len(chunk.clients), half, n, r).movedim(0, 1)
    few = first[:half]
    z = z - torch.einsum("ksm,snrm->ksnr", few, torch.einsum("ksm,ksnr->snrm", few, z) / half)
    root = torch.linalg.cholesky(torch.einsum("ksnr,ksnt->snrt", z, z) / half)
    z = torch.linalg.solve_triangular(root, z.permute(1, 2, 3, 0), upper=False).permute(3, 0, 1, 2)
    return first[..., :p], first[..., p:], torch.cat([z, -z])


def recentred(clients: Clients, x: Tensor, v: Tensor, new: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """The same latents in the numbers of another centring, (S, q), and their slopes (S, q, p + c + r).

    See :meth:`..evaluating.Clients.recentred`. Slopes are by the globals, by the client's own numbers, and by each
    number of a row, of all rows at once: a row's move with its own alone.

    Args:
        clients: with the centring so far.
        x: (S, p).
        v: (S, q).
        new: centring, (S, q).
        layout: of a client's numbers.
    """
    p, (c, _, r) = x.shape[-1], layout.sizes

    def for_client(
        x: Tensor, v: Tensor, columns: Tensor, mask: Tensor | None, old: Tensor, new: Tensor
    ) -> tuple[Tensor, Tensor]:
        def moved(t: Tensor) -> Tensor:
            rows = t[p + c :].expand(layout.rows.shape)
            at = v + layout.joined(t[p : p + c], rows)
            batch = clients.design.named(columns, mask)
            z = unconstrained(clients.marginals, x + t[:p])
            loc, scale = locations_and_scales(clients.model, clients.sites, z, at, batch, old)
            return new * loc + scale ** (new - old) * (at - old * loc)

        made, pulled = cast("tuple[Tensor, Any]", vjp(moved, x.new_zeros(p + c + r)))
        return made, jacrev(lambda by: pulled(by)[0])(torch.zeros_like(made)).mT

    rows = (0, 0, 0, None if clients.mask is None else 0, 0, 0)
    values = vmap(for_client, rows)(x, v, clients.columns, clients.mask, clients.centring, new)
    return values[0].detach(), values[1].detach()


def _in_parts(chunk: ClientChunk, layout: Layout, draws: int) -> list[ClientChunk]:
    """A plate's clients, so few at a time that their draws fit into memory."""
    many = max(1, CELLS // max(1, draws * len(layout.rows)))
    count = len(chunk.clients)
    return [chunk.take(range(first, min(count, first + many))) for first in range(0, count, many)]


def _together(parts: Sequence[State]) -> State:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class FitRows:
    """A local step: a client's part of the guide by Newton steps in expectation.

    Args:
        method: whose model.
        layout: of a client's numbers.
    """

    method: GaussianModel
    layout: Layout

    @property
    def trains(self) -> Sequence[str]:
        """The clients' part of the guide, and what counts of them."""
        return (*OWN_VALUES, *KEPT, OWN_ACCEPTED, OWN_SENT)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Fits the clients' part from the last guide that was kept, while the guide climbs."""
        if int(chunk.shared[PHASE]) > Phase.FINE:
            return chunk
        chunk = kept(chunk)
        parts = []
        for part in _in_parts(chunk, self.layout, self.method.draws_of_round(fine=True)):
            at = ArrowRows.for_chunk(self.method, self.layout, part)
            if int(chunk.shared[PHASE]) == Phase.ROUGH:
                at = at.centred()
            for _ in range(self.method.settings.local_steps):
                at = at.stepped()
            parts.append({**at.values(), **at.counted(part)})
        return chunk.put(_together(parts))


def row_heights(method: GaussianModel, layout: Layout, chunk: ClientChunk, points: Tensor) -> tuple[Tensor, Tensor]:
    """The heights of clients at points of the globals (M, p): the quadratic of their bound, and draws of their part
    of the guide.

    Estimates by weights would be of no worth with so many numbers.
    """
    at = ArrowRows.for_chunk(method, layout, chunk)
    sent, apart = at.message(), gaussian(at.clients.marginals, points) - at.mean
    height = apart @ sent.gradient.T - 0.5 * torch.einsum("mp,spl,ml->ms", apart, sent.precision, apart)
    v = _drawn(at, layout, chunk, apart)
    return height, v


def _drawn(at: ArrowRows, layout: Layout, chunk: ClientChunk, apart: Tensor) -> Tensor:
    (c, n, r), count = layout.sizes, len(chunk.clients)
    z = philox.normals(chunk.keys, key(chunk.seed, "rows' draws"), 0, len(apart) * (c + n * r), torch.float64)
    z = z.reshape(count, len(apart), -1).movedim(0, 1).to(apart.device)
    own, rows = z.split([c, n * r], -1)
    return at.guide.draws(apart[:, None].expand(-1, count, -1), own, rows.unflatten(-1, (n, r)))


@dataclass(frozen=True)
class DrawRows:
    """A local step after the last round: each client's latents at each kept draw of the globals, by the guide.

    Args:
        method: whose model.
        layout: of a client's numbers.
    """

    method: GaussianModel
    layout: Layout

    @property
    def trains(self) -> Sequence[str]:
        """The client's draws."""
        return (OWN_DRAWS,)

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """One draw for each."""
        parts = []
        for part in _in_parts(chunk, self.layout, len(chunk.shared[DRAWS])):
            at = ArrowRows.for_chunk(self.method, self.layout, part)
            v = _drawn(at, self.layout, part, gaussian(at.clients.marginals, part.shared[DRAWS]) - at.mean)
            parts.append({OWN_DRAWS: v.movedim(0, 1).unsqueeze(1)})
        return chunk.put(_together(parts))
