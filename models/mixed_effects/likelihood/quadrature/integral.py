"""The clients' marginal likelihoods by adaptive Gauss-Hermite quadrature around each one's mode and curvature.

    log p(D_j | theta) = log integral p(D_j | b, theta) N(b | 0, L L^T) db

(Pinheiro and Bates, 1995). With one node that is Laplace's approximation. Nodes move with theta, and derivatives know
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyro
import torch
from torch import Tensor

from hierfl.data.padding import buckets
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.arithmetic import IMPOSSIBLE, sound
from ...model.equations import MixedModel
from ..joint.problem import JointProblem, numbers_of, problem_of
from .derivatives import expanded, in_closed_form
from .nested import marginal_heights
from .newton import NEAR_NODES, NEWTON_TOLERANCE, Factors, Problem
from .nodes import integral, nodes_of, nodes_per_row

#: nodes x points x examples of a pass: with second derivatives some fifty numbers are held for each
EXAMPLES_PER_PASS = 1_000_000
#: of so many nodes it does not matter for the integral whether they are precisely around the mode
MIN_ROBUST_NODES = 9


def log_marginals(problem: Problem, mode: Tensor, factors: Factors) -> Tensor:
    """(..., S): around a mode and the curvature there, as :meth:`.newton.Problem.mode` finds them."""
    if isinstance(problem, JointProblem):
        return problem.laplace(mode, factors)
    u, factor = problem.parts(mode)[0], factors[0]
    return integral(lambda at: marginal_heights(problem, at, mode, factors), u, factor, nodes_of(problem.method))


def expansion(method: MixedModel, chunk: ClientChunk, names: Sequence[str], shared: Mapping[str, Tensor]) -> State:
    """Each client's log marginal likelihood at the shared values, its gradient and curvature.

    Args:
        method: whose model.
        chunk: whose data; modes start from its ``u_mode``; what clients know of their own of these names is there.
        names: short names of the k numbers, one after the other.
        shared: all of them.

    Returns:
        height (S,), slope (S, k), curvature (S, k, k), minus the second derivatives.
    """
    if in_closed_form(method, names):
        parts = [_closed_form(method, part, names, shared) for part in passes(method, chunk, method.k)]
    else:
        parts = [_by_autograd(method, part, names, shared) for part in passes(method, chunk, 1)]
    whole = {k: torch.cat([part[k] for part in parts]) for k in parts[0]}
    fine = torch.stack([sound(v).flatten(1).all(1) if v.dim() > 1 else sound(v) for v in whole.values()]).all(0)
    return {
        k: torch.where(fine.view(-1, *[1] * (v.dim() - 1)), v, IMPOSSIBLE if k == "height" else 0.0)
        for k, v in whole.items()
    }


def _closed_form(method: MixedModel, part: ClientChunk, names: Sequence[str], shared: Mapping[str, Tensor]) -> State:
    """See :func:`expansion`, by the equations of :mod:`.derivatives`."""
    with torch.no_grad(), pyro.validation_enabled(False):
        problem = Problem.from_batch(method, part.batch(), {k: v[None, None] for k, v in shared.items()})
        mode, _ = problem.mode(part.values["u_mode"].squeeze(1))
        taylor = expanded(problem, names, method.covariance.matrix(shared["root"]), mode)
    return {"height": taylor.value, "slope": taylor.slope.mT, "curvature": -taylor.bend.permute(2, 0, 1)}


def _by_autograd(method: MixedModel, part: ClientChunk, names: Sequence[str], shared: Mapping[str, Tensor]) -> State:
    """See :func:`expansion`, by differentiating two of Newton's steps."""
    leaves = {k: _leaf(part, k, shared) for k in names}
    with torch.enable_grad(), pyro.validation_enabled(False):
        problem = problem_of(method, part.batch(), {**shared, **leaves})
        mode, _ = problem.mode(part.values["u_mode"].squeeze(1))
        height = log_marginals(problem, *problem.differentiable(mode))
        slope = along(height.sum(), list(leaves.values()), again=True)
        bend = [along(slope[:, a].sum(), list(leaves.values()), again=False) for a in range(slope.shape[1])]
    derivatives = {"height": height, "slope": slope, "curvature": -torch.stack(bend, 1)}
    return {k: v.detach() for k, v in derivatives.items()}


def _leaf(part: ClientChunk, name: str, shared: Mapping[str, Tensor]) -> Tensor:
    """A value as each client's own, (S, 1, *shape)."""
    value = part.values[name] if name in part.values else shared[name].expand(len(part.clients), 1, *shared[name].shape)
    return value.detach().clone().requires_grad_()


def along(value: Tensor, leaves: Sequence[Tensor], *, again: bool) -> Tensor:
    """The gradient in leaves (S, 1, *shape), one after the other: (S, k)."""
    slopes = torch.autograd.grad(value, leaves, create_graph=again, retain_graph=True, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(x) if g is None else g).flatten(1) for g, x in zip(slopes, leaves, strict=True)], 1
    )


@torch.no_grad()
def heights_at(method: MixedModel, chunk: ClientChunk, points: Mapping[str, Tensor]) -> Tensor:
    """Each client's log marginal likelihood at points {name: (M, *shape)}: (S, M).

    Points may differ between clients: values "many" of the chunk, (S, 1, M, q), are the effects of their regions.
    """
    parts = []
    number = max(len(value) for value in points.values())
    tolerance = NEAR_NODES if nodes_of(method) >= MIN_ROBUST_NODES and not method.inside else NEWTON_TOLERANCE
    for part in passes(method, chunk, 1):
        batch = part.batch()
        numbers_each = max(batch.width * nodes_per_row(method), numbers_of(method)) * len(part.clients)
        size, pieces = max(1, EXAMPLES_PER_PASS // numbers_each), []
        for first in range(0, number, size):
            some = {k: v[first : first + size, None, None] for k, v in points.items()}
            if method.above:
                some["w"] = part.values["many"][:, 0, first : first + size].transpose(0, 1).unsqueeze(-2)
            with pyro.validation_enabled(False):
                problem = problem_of(method, batch, some)
                pieces.append(log_marginals(problem, *problem.mode(part.values["u_mode"].squeeze(1), tolerance)))
        parts.append(torch.cat(pieces).mT)
    heights = torch.cat(parts)
    return torch.where(sound(heights), heights, IMPOSSIBLE)


def passes(method: MixedModel, chunk: ClientChunk, points: int) -> list[ClientChunk]:
    """Rows that are padded little, and whose nodes fit into memory."""
    most = EXAMPLES_PER_PASS / (points * nodes_per_row(method))
    return [chunk.part(first, last) for first, last in buckets(chunk.sizes, most)]
