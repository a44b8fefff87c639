"""Each client's random effects at every draw of the population: together they are draws of the joint posterior.

Gaussian: b_j given the population is normal, and drawn exactly from the client's row sums (:mod:`.gaussian.draws`).
Other families: u_j, b_j = L u_j, is drawn by a Metropolis chain whose proposals do not depend on where it is: around
the mode, or from the prior, which no posterior's tails are heavier than.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ..model.equations import MixedModel
from ..search.questions import Likelihoods, Phase
from .gaussian.draws import gaussian_effects, gaussian_groups, gaussian_mode, moments
from .quadrature.nested import Nested, problem_of
from .quadrature.newton import Factors
from .quadrature.nodes import nodes_of

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
        """Means and roots, and the mode in u where there is one to search."""
        inner = ("c_mean", "c_root") if self.method.slots else ()
        return ("b_mean", "b_root", *inner) if self.method.exact else ("b_mean", "b_root", *inner, "u_mode")

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """At the estimates."""
        shared = short(chunk.shared)
        return chunk.put(self._gaussian(chunk, shared) if self.method.exact else self._others(chunk, shared))

    def _gaussian(self, chunk: ClientChunk, shared: State) -> State:
        gram, rows = chunk.values["gram"], chunk.values["rows"]
        root = self.method.covariance.matrix(shared["root"])
        u, factor = gaussian_mode(self.method, gram, rows, shared)
        b, lower = u @ root.mT, triangle(root, factor)
        found = {"b_mean": b.unsqueeze(1), "b_root": lower.unsqueeze(1)}
        if self.method.slots:
            mean, covariance = gaussian_groups(self.method, gram, rows, shared, b, lower)
            found |= {"c_mean": mean.unsqueeze(1), "c_root": cholesky(covariance).unsqueeze(1)}
        return found

    def _others(self, chunk: ClientChunk, shared: State) -> State:
        found, q = list[State](), self.method.covariance.q
        root = self.method.covariance.matrix(shared["root"])
        for part in parts_of(chunk):
            mode, factors = problem_of(self.method, part.batch(), shared).mode(part.values["u_mode"].squeeze(1))
            values = {"b_mean": mode[:, :q] @ root.mT, "b_root": triangle(root, factors[0]), "u_mode": mode}
            if self.method.slots:
                inner = self.method.covariances["inner_root"].matrix(shared["inner_root"])
                _, factor_g, m = factors
                # of v_g: its own curvature's, and what it follows u by
                one = torch.eye(inner.shape[-1]).to(inner).expand_as(factor_g)
                follow = torch.linalg.solve_triangular(factors[0].unsqueeze(-3), m.mT, upper=False)
                spread = torch.cholesky_solve(one, factor_g) + follow.mT @ follow
                v = mode[:, q:].unflatten(-1, (self.method.slots, -1))
                values |= {"c_mean": v @ inner.mT, "c_root": cholesky(inner @ spread @ inner.mT)}
            found.append({k: v.unsqueeze(1) for k, v in values.items()})
        return {k: torch.cat([part[k] for part in found]) for k in found[0]}


@dataclass(frozen=True)
class JointDraws:
    """A local step: b_j at each draw of the population, and what they say together.

    Args:
        method: whose model.
    """

    method: MixedModel

    @property
    def trains(self) -> Sequence[str]:
        """Draws (chains, kept, q), their mean and a root of their covariance; and those of groups inside."""
        names = ("b", "c") if self.method.slots else ("b",)
        return [f"{name}_{part}" for name in names for part in ("draws", "mean", "root")]

    def run(self, chunk: ClientChunk, phase: object) -> ClientChunk:
        """Where there are draws of the population; elsewhere everything stays, and is conditional on the estimates."""
        if Phase(int(chunk.shared["effects.phase"])) != Phase.DONE or not len(chunk.shared["effects.draws"]):
            return chunk
        draws = self.method.parts(chunk.shared["effects.draws"])
        held = Likelihoods.held(chunk.shared)
        draws |= {k: v.expand(len(chunk.shared["effects.draws"]), *v.shape) for k, v in held.items()}
        return chunk.put((self._gaussian if self.method.exact else self._others)(chunk, draws, phase))

    def _gaussian(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """Moments are the mixture's own."""
        number, groups = len(draws["beta"]), self.method.slots
        noise = chunk.noise(phase, number)
        z = {"root": noise.normal("u", None, torch.Size((self.method.covariance.q,))).squeeze(2)}
        if groups:
            size = torch.Size((groups, self.method.covariances["inner_root"].q))
            z["inner_root"] = noise.normal("v", None, size).squeeze(2).transpose(1, 2).flatten(1, 2)
        clients, inner = gaussian_effects(self.method, chunk.values["gram"], chunk.values["rows"], draws, z)
        found = kept("b", *moments(clients), clients.draws)
        if inner is not None:
            of_groups = (groups, len(chunk.clients))
            mean, covariance = (v.unflatten(0, of_groups).transpose(0, 1) for v in moments(inner))
            found |= kept("c", mean, covariance, inner.draws.unflatten(1, of_groups).transpose(1, 2))
        return found

    def _others(self, chunk: ClientChunk, draws: State, phase: object) -> State:
        """The same, with the draws' moments."""
        found = list[tuple[Tensor, Tensor | None]]()
        number, q = len(draws["beta"]), self.method.covariance.q
        for part in parts_of(chunk):
            batch = part.batch()
            noise = part.noise(phase, number).normal("u", None, torch.Size((STEPS + 1, q + 2))).squeeze(2)
            size = max(1, EXAMPLES_PER_PASS // (batch.width * len(part.clients) * self._nodes))
            pieces, inner_pieces = list[Tensor](), list[Tensor]()
            for first in range(0, number, size):
                some = {k: v[first : first + size, None, None] for k, v in draws.items()}
                with pyro.validation_enabled(False):
                    problem = problem_of(self.method, batch, some)
                    mode, factors = problem.mode(part.values["u_mode"].squeeze(1))
                    heights = partial(problem.marginal_heights, mode=mode, factors=factors)
                    u = metropolis(heights, mode[..., :q], factors[0], noise[first : first + size])
                    if isinstance(problem, Nested):
                        inner_pieces.append(self._groups(problem, part, (phase, first), u, mode, factors, some))
                root = self.method.covariance.matrix(some["root"].squeeze(1))  # (D, 1, q, q)
                pieces.append((root @ u[..., None]).squeeze(-1))
            found.append((torch.cat(pieces), torch.cat(inner_pieces) if inner_pieces else None))
        b = torch.cat([own for own, _ in found], 1)
        values = kept("b", *sample_moments(b), b)
        if self.method.slots:
            c = torch.cat([inner for _, inner in found if inner is not None], 1)
            values |= kept("c", *sample_moments(c), c)
        return values

    @property
    def _nodes(self) -> int:
        """Of the quadrature inside a client."""
        inner = self.method.covariances.get("inner_root")
        return nodes_of(self.method) ** inner.q if inner else 1

    def _groups(
        self, problem: Nested, part: ClientChunk, phase: object, u: Tensor, mode: Tensor, factors: Factors, some: State
    ) -> Tensor:
        """Effects of groups inside the clients given u, (D, S, G, q_in)."""
        v, factor = problem.followed(u, mode, factors)
        size = torch.Size((self.method.slots, STEPS + 1, v.shape[-1] + 2))
        noise = part.noise(phase, len(u)).normal("v", None, size).squeeze(2)
        drawn = metropolis(partial(problem.group_heights, u), v, factor, noise)
        root = self.method.covariances["inner_root"].matrix(some["inner_root"])  # (D, 1, 1, q, q)
        return (root @ drawn[..., None]).squeeze(-1)


def kept(name: str, mean: Tensor, covariance: Tensor, draws: Tensor) -> State:
    """What is kept of effects (D, S, *shape): draws, their mean and a root of their covariance."""
    each = draws.transpose(0, 1).unflatten(1, (-1, len(draws) // chains_of(len(draws))))
    found = {f"{name}_draws": each, f"{name}_mean": mean, f"{name}_root": cholesky(covariance)}
    return {k: v.unsqueeze(1) for k, v in found.items()}


def sample_moments(b: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (S, ..., q) and covariance (S, ..., q, q) of draws (D, S, ..., q)."""
    gap = b - b.mean(0)
    return b.mean(0), torch.einsum("d...i,d...j->...ij", gap, gap) / max(1, len(b) - 1)


def cholesky(covariance: Tensor) -> Tensor:
    """A root of a covariance that may be zero."""
    one = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.cholesky_ex(covariance + 1e-30 * one).L


def metropolis(heights: Callable[[Tensor], Tensor], mode: Tensor, factor: Tensor, noise: Tensor) -> Tensor:
    """Draws u (..., q) of a posterior under a standard normal prior, by independent proposals.

    Args:
        heights: log density but for a constant, (...) of u (..., q).
        mode, factor: around which it is, (..., q) and F (..., q, q).
        noise: standard normals (..., steps + 1, q + 2): of each proposal, of its kind, of its acceptance.
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
    for step in range(noise.shape[-2]):
        near = mode + torch.linalg.solve_triangular(wide.mT, z[..., step, :, None], upper=True).squeeze(-1)
        new = torch.where((kind[..., step] < prior_kind)[..., None], z[..., step, :], near)
        new_ratio = heights(new) - log_proposal(new)
        taken = torch.special.log_ndtr(luck[..., step]) < new_ratio - ratio
        u, ratio = torch.where(taken[..., None], new, u), torch.where(taken, new_ratio, ratio)
    return u


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
