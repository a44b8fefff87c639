"""Each client's random effects at every draw of the population: together they are draws of the joint posterior.

Gaussian: b_j given the population is normal, and drawn exactly from the client's row sums (:mod:`.cross_products`).
Other families: u_j, b_j = L u_j, is drawn by a Metropolis chain whose proposals do not depend on where it is: around
the mode, or from the prior, which no posterior's tails are heavier than.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from .cross_products import clients_last, eliminated, sum_of
from .model import MixedModel
from .modes import Problem
from .questions import Likelihoods, Phase

#: steps of a Metropolis chain, the share of its proposals that are the prior's, and how much wider the others are
STEPS, FROM_PRIOR, WIDER = 6, 0.1, 1.1
#: draws x examples that are held at a time
EXAMPLES_PER_PASS = 2_000_000
#: what the draws are cut into, for those who compare chains
CHAINS = 4


@dataclass(frozen=True)
class Conditional:
    """A local step: b_j's mean and a root of its covariance given the shared values, as a round has them.

    Args:
        method: whose model.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """Mean and root, the mode in u where there is one to search, and draws, of which there are none yet."""
        return ("b_mean", "b_root") if self.method.exact else ("b_mean", "b_root", "u_mode")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """At the estimates."""
        shared = short(chunk.shared)
        root = self.method.covariance.matrix(shared["root"])
        if self.method.exact:
            u, factor = gaussian_mode(self.method, chunk.values["gram"], shared)
        else:
            found = [
                Problem.of(self.method, part.batch(), shared).mode(part.values["u_mode"].squeeze(1))
                for part in parts_of(chunk)
            ]
            u, factor = (torch.cat(same) for same in zip(*found, strict=True))
        put = {"b_mean": (u @ root.mT).unsqueeze(1), "b_root": triangle(root, factor).unsqueeze(1)}
        return chunk.put(put if self.method.exact else {**put, "u_mode": u.unsqueeze(1)})


@dataclass(frozen=True)
class JointDraws:
    """A local step: b_j at each draw of the population, and what they say together.

    Args:
        method: whose model.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """Draws (chains, kept, q), their mean and a root of their covariance."""
        return ("b_draws", "b_mean", "b_root")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Where there are draws of the population; elsewhere everything stays, and is conditional on the estimates."""
        if Phase(int(chunk.shared["effects.phase"])) != Phase.DONE or not len(chunk.shared["effects.draws"]):
            return chunk
        draws = self.method.parts(chunk.shared["effects.draws"])
        held = Likelihoods.held(chunk.shared)
        draws |= {k: v.expand(len(chunk.shared["effects.draws"]), *v.shape) for k, v in held.items()}
        mean, covariance, b = (self._gaussian if self.method.exact else self._others)(chunk, draws, phase)
        lower = torch.linalg.cholesky_ex(covariance + 1e-30 * torch.eye(mean.shape[-1]).to(mean)).L
        kept = b.transpose(0, 1).unflatten(1, (-1, len(b) // chains_of(len(b)))).unsqueeze(1)
        return chunk.put({"b_draws": kept, "b_mean": mean.unsqueeze(1), "b_root": lower.unsqueeze(1)})

    def _gaussian(self, chunk: ClientChunk, draws: State, phase: object) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (S, q), covariance (S, q, q) and draws (D, S, q): moments are the mixture's own.

        Entry by entry, as :func:`.cross_products.packed` is: of many draws and clients an order of magnitude faster.
        """
        root, q = self.method.covariance.matrix(draws["root"]), self.method.covariance.q
        z = chunk.noise(phase, len(root)).normal("u", None, torch.Size((q,))).squeeze(2)
        factor, v = whitened(self.method, chunk.values["gram"], draws)
        u, moved = back(factor, v), back(factor, [v[a] + z[..., a] for a in range(q)])
        means, b = (torch.stack(turned(root, one), -1) for one in (u, moved))
        # L (F F^T)^-1 L^T of F^-1 L^T, column by column
        columns = [forward(factor, [root[:, i, a, None] for a in range(q)]) for i in range(q)]
        within = [
            [sum_of([a * c for a, c in zip(one, other, strict=True)]).mean(0) for other in columns] for one in columns
        ]
        gap = means - means.mean(0)
        covariance = torch.stack([torch.stack([v.expand(gap.shape[1]) for v in row], -1) for row in within], -2)
        return means.mean(0), covariance + torch.einsum("dsi,dsj->sij", gap, gap) / len(gap), b

    def _others(self, chunk: ClientChunk, draws: State, phase: object) -> tuple[Tensor, Tensor, Tensor]:
        """The same, with the draws' moments."""
        found = []
        number, q = len(draws["beta"]), self.method.covariance.q
        for part in parts_of(chunk):
            batch = part.batch()
            noise = part.noise(phase, number).normal("u", None, torch.Size((STEPS + 1, q + 2))).squeeze(2)
            size, pieces = max(1, EXAMPLES_PER_PASS // (batch.width * len(part.clients))), []
            for first in range(0, number, size):
                some = {k: v[first : first + size, None, None] for k, v in draws.items()}
                with pyro.validation_enabled(False):
                    problem = Problem.of(self.method, batch, some)
                    mode, factor = problem.mode(part.values["u_mode"].squeeze(1))
                    u = metropolis(problem, mode, factor, noise[first : first + size])
                root = self.method.covariance.matrix(some["root"].squeeze(1))  # (D, 1, q, q)
                pieces.append((root @ u[..., None]).squeeze(-1))
            found.append(torch.cat(pieces))
        b = torch.cat(found, 1)
        gap = b - b.mean(0)
        return b.mean(0), torch.einsum("dsi,dsj->sij", gap, gap) / max(1, len(b) - 1), b


def metropolis(problem: Problem, mode: Tensor, factor: Tensor, noise: Tensor) -> Tensor:
    """Draws u (D, S, q) of p(u | D_j), by independent proposals.

    Args:
        problem: whose heights.
        mode, factor: u (D, S, q) and F (D, S, q, q).
        noise: standard normals (D, S, steps + 1, q + 2): of each proposal, of its kind, of its acceptance.
    """
    q = mode.shape[-1]
    wide = factor / WIDER
    volume = wide.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_proposal(u: Tensor) -> Tensor:
        away = (wide.mT @ (u - mode)[..., None]).squeeze(-1)
        near = math.log(1 - FROM_PRIOR) + volume - 0.5 * away.square().sum(-1)
        return torch.logaddexp(near, math.log(FROM_PRIOR) - 0.5 * u.square().sum(-1))

    z, kind, luck = noise[..., :q], noise[..., q], noise[..., q + 1]
    prior_kind = torch.special.ndtri(torch.tensor(FROM_PRIOR, dtype=mode.dtype)).to(mode)
    u, ratio = mode, torch.full_like(mode[..., 0], -torch.inf)
    for step in range(noise.shape[2]):
        near = mode + torch.linalg.solve_triangular(wide.mT, z[:, :, step, :, None], upper=True).squeeze(-1)
        new = torch.where((kind[:, :, step] < prior_kind)[..., None], z[:, :, step], near)
        new_ratio = problem.heights(new) - log_proposal(new)
        taken = torch.special.log_ndtr(luck[:, :, step]) < new_ratio - ratio
        u, ratio = torch.where(taken[..., None], new, u), torch.where(taken, new_ratio, ratio)
    return u


def whitened(method: MixedModel, gram: Tensor, shared: Mapping[str, Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
    """F, and v = F^T E[u], entry by entry, (D, S) each, at shared values {name: (D, *shape)}.

    Args:
        method: whose model.
        gram: G, (S, 1, m, m).
        shared: of the population.
    """
    entries, log_s = shared["root"].T[..., None].unbind(), shared.get("log_noise")
    log_s = None if log_s is None else log_s[:, None]
    factor, w, inverse = eliminated(method.covariance, clients_last(gram), entries, log_s)
    number, beta = len(shared["beta"]), shared["beta"]
    v = []
    for one in w:
        gap = one[..., -1, :] - sum_of([one[..., k, :] * beta[:, k, None] for k in range(beta.shape[-1])])
        v.append((gap * inverse).expand(number, gram.shape[0]))
    return [[entry.expand(number, gram.shape[0]) for entry in row] for row in factor], v


def gaussian_mode(method: MixedModel, gram: Tensor, shared: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """u's mean (S, q), and F (S, q, q), from G (S, 1, m, m), at shared values {name: (*shape)}."""
    factor, v = whitened(method, gram, {k: value[None] for k, value in shared.items()})
    nothing = torch.zeros_like(v[0][0])
    rows = [torch.stack([*(e[0] for e in row), *[nothing] * (len(v) - len(row))], -1) for row in factor]
    return torch.stack([u[0] for u in back(factor, v)], -1), torch.stack(rows, -2)


def forward(factor: list[list[Tensor]], b: Sequence[Tensor]) -> list[Tensor]:
    """F^-1 b, entry by entry."""
    found: list[Tensor] = []
    for a, row in enumerate(factor):
        rest = b[a]
        for c in range(a):
            rest = rest - row[c] * found[c]
        found.append(rest / row[a])
    return found


def back(factor: list[list[Tensor]], v: Sequence[Tensor]) -> list[Tensor]:
    """F^-T v, entry by entry."""
    q, found = len(v), dict[int, Tensor]()
    for a in reversed(range(q)):
        rest = v[a]
        for c in range(a + 1, q):
            rest = rest - factor[c][a] * found[c]
        found[a] = rest / factor[a][a]
    return [found[a] for a in range(q)]


def turned(root: Tensor, u: Sequence[Tensor]) -> list[Tensor]:
    """L u, L (D, q, q), entry by entry."""
    return [sum_of([root[:, i, a, None] * u[a] for a in range(i + 1)]) for i in range(len(u))]


def short(shared: Mapping[str, Tensor]) -> State:
    """Shared values by their short names, learned or held."""
    return {k.partition(".")[2]: v for k, v in shared.items() if k.startswith(("effects.", "held."))}


def parts_of(chunk: ClientChunk) -> list[ClientChunk]:
    """Rows that are padded little."""
    return [chunk.part(first, last) for first, last in buckets(chunk.sizes)]


def triangle(root: Tensor, factor: Tensor) -> Tensor:
    """The lower triangular root of L (F F^T)^-1 L^T: however small L is, L F^-T is one; its QR has the triangle."""
    wide = torch.linalg.solve_triangular(factor, root.mT.expand_as(factor), upper=False).mT
    upper = torch.linalg.qr(wide.mT).R
    return (upper * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT


def chains_of(draws: int) -> int:
    """How many chains so many draws are cut into."""
    return CHAINS if draws % CHAINS == 0 else 1
