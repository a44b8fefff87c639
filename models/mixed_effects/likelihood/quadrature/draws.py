"""What a client of another response keeps of its random effects: mode and curvature, and draws.

u_j, b_j = L u_j, is drawn by a Metropolis chain whose proposals do not depend on where it is: around the mode, or from
the prior, which no posterior's tails are heavier than.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..moments import cholesky, kept, sample_moments, triangle
from .groups import Groups
from .nested import followed, group_heights, marginal_heights
from .newton import NEAR_PROPOSALS, NEWTON_TOLERANCE, Factors, Problem
from .nodes import nodes_of

#: of a Metropolis chain, the share of proposals that are the prior's, and how much wider the others are
FROM_PRIOR, PROPOSAL_FACTOR = 0.1, 1.1
#: draws x examples that are held at a time
EXAMPLES_PER_PASS, EXAMPLES_IN_CACHE = 2_000_000, 65_536


def conditional(method: MixedModel, chunk: ClientChunk, shared: State) -> State:
    """Effects at the mode, with the curvature's covariance, {name: (S, 1, *shape)}."""
    states, q = list[State](), method.covariance.q
    root = method.covariance.matrix(shared["root"])
    for part in parts_of(chunk):
        mode, factors = Problem.from_batch(method, part.batch(), shared).mode(part.values["u_mode"].squeeze(1))
        values = {"b_mean": mode[:, :q] @ root.mT, "b_root": triangle(root, factors[0]), "u_mode": mode}
        for level in method.inside:
            inner = level.root(shared[level.name])
            _, factor_g, m = factors
            # of v_g: its own curvature's, and what it follows u by
            identity = torch.eye(inner.shape[-1]).to(inner).expand_as(factor_g)
            follow = torch.linalg.solve_triangular(factors[0].unsqueeze(-3), m.mT, upper=False)
            spread = torch.cholesky_solve(identity, factor_g) + follow.mT @ follow
            v = mode[:, q:].unflatten(-1, (level.size, -1))
            values |= {"c_mean": v @ inner.mT, "c_root": cholesky(inner @ spread @ inner.mT)}
        states.append({k: v.unsqueeze(1) for k, v in values.items()})
    return {k: torch.cat([part[k] for part in states]) for k in states[0]}


def joint(method: MixedModel, chunk: ClientChunk, draws: State, phase: object) -> State:
    """Effects at draws of the population {name: (D, *shape)}, with the draws' moments."""
    parts = list[tuple[Tensor, Tensor | None]]()
    number, q = len(draws["beta"]), method.covariance.q
    for part in parts_of(chunk):
        batch = part.batch()
        noise = (
            part.noise(phase, number)
            .normal("u", None, torch.Size((method.response_family.chain_steps + 1, q + 2)))
            .squeeze(2)
        )
        # Noise of groups inside is by pass; else numbers that stay in a processor's cache are quicker.
        most = EXAMPLES_PER_PASS if method.inside or batch.y.device.type != "cpu" else EXAMPLES_IN_CACHE
        size = max(1, most // (batch.width * len(part.clients) * _nodes(method)))
        tolerance = NEWTON_TOLERANCE if method.inside else NEAR_PROPOSALS
        pieces, inner_pieces = list[Tensor](), list[Tensor]()
        for first in range(0, number, size):
            some = {k: v[first : first + size, None, None] for k, v in draws.items()}
            with pyro.validation_enabled(False):
                problem = Problem.from_batch(method, batch, some)
                mode, factors = problem.mode(part.values["u_mode"].squeeze(1), tolerance)
                heights = partial(marginal_heights, problem, mode=mode, factors=factors)
                u = metropolis(heights, mode[..., :q], factors[0], noise[first : first + size])
                if problem.groups is not None:
                    inner_pieces.append(_groups(problem, problem.groups, part, (phase, first), u, mode, factors, some))
            root = method.covariance.matrix(some["root"].squeeze(1))  # (D, 1, q, q)
            pieces.append((root @ u[..., None]).squeeze(-1))
        parts.append((torch.cat(pieces), torch.cat(inner_pieces) if inner_pieces else None))
    b = torch.cat([own for own, _ in parts], 1)
    values = kept("b", *sample_moments(b), b)
    if method.inside:
        c = torch.cat([inner for _, inner in parts if inner is not None], 1)
        values |= kept("c", *sample_moments(c), c)
    return values


def _nodes(method: MixedModel) -> int:
    """The nodes of the quadrature inside a client."""
    return math.prod(nodes_of(method) ** level.q for level in method.inside)


def _groups(
    problem: Problem, groups: Groups, part: ClientChunk, phase: object, u: Tensor, mode: Tensor, factors: Factors,
    some: State,
) -> Tensor:  # fmt: skip
    """Effects of groups inside the clients given u, (D, S, G, q_in)."""
    v, factor = followed(problem, groups, u, mode, factors)
    size = torch.Size((groups.level.size, problem.method.response_family.chain_steps + 1, v.shape[-1] + 2))
    noise = part.noise(phase, len(u)).normal("v", None, size).squeeze(2)
    drawn = metropolis(partial(group_heights, problem, groups, u), v, factor, noise)
    root = groups.level.root(some[groups.level.name])  # (D, 1, 1, q, q)
    return (root @ drawn[..., None]).squeeze(-1)


def metropolis(heights: Callable[[Tensor], Tensor], mode: Tensor, factor: Tensor, noise: Tensor) -> Tensor:
    """Draws u (..., q) of a posterior under a standard normal prior, by independent proposals.

    Args:
        heights: log density but for a constant, (...) of u (..., q).
        mode, factor: around which it is, (..., q) and F (..., q, q).
        noise: standard normals (..., steps + 1, q + 2): of each proposal, of its kind, of its acceptance.
    """
    q = mode.shape[-1]
    wide = factor / PROPOSAL_FACTOR
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


def parts_of(chunk: ClientChunk) -> list[ClientChunk]:
    """Rows that are padded little."""
    return [chunk.part(first, last) for first, last in buckets(chunk.sizes)]
