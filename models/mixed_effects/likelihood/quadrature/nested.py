"""Marginal heights of clients that have groups inside: given u these are independent, and each is integrated by itself.

Each group's integral over v_g is by quadrature around its own mode, and the client's over u around the joint one. With
one node each that is Laplace's approximation of both together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.shapes import broadcast_shapes

from .groups import Groups
from .newton import Factors, Problem
from .nodes import integral, nodes_of

#: Newton steps to the groups' modes at another u, from those that the joint curvature predicts
FOLLOWING = 2


def marginal_heights(problem: Problem, u: Tensor, mode: Tensor, factors: Factors) -> Tensor:
    """log p(D_j | u) + log N(u | 0, I) but for its constant, (..., S) of u (..., S, q).

    Effects of groups inside are integrated out, by quadrature in v around mode and factors.
    """
    groups = problem.groups
    if groups is None:
        # Node by node: what stays in a processor's cache is quicker.
        apart = u.dim() > problem.fixed.dim() and u.device.type == "cpu" and not torch.is_grad_enabled()
        return torch.stack([problem.heights(point) for point in u]) if apart else problem.heights(u)
    v, factor = followed(problem, groups, u, mode, factors)
    of_groups = integral(lambda at: group_heights(problem, groups, u, at), v, factor, nodes_of(problem.method))
    return of_groups.sum(-1) - 0.5 * u.square().sum(-1)


def followed(
    problem: Problem, groups: Groups, u: Tensor, mode: Tensor, factors: Factors
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The groups' modes v (..., S, G, q_in) at another u, and F_g there; at the mode itself they stay."""
    at, v = problem.parts(mode)
    assert v is not None
    _, factor, m = factors
    v = v - (m @ (u - at)[..., None, :, None]).squeeze(-1)
    for _ in range(FOLLOWING if nodes_of(problem.method) > 1 else 0):
        slope, weight = problem.slope_and_weight(joined(u, v), safe=False)
        factor, ahead = groups.around(slope, weight, v)
        v = v + torch.cholesky_solve(ahead[..., None], factor).squeeze(-1)
    return v, factor


def joined(u: Tensor, v: Tensor) -> Tensor:
    """All unknowns together."""
    lead = broadcast_shapes(u.shape[:-1], v.shape[:-2])
    return torch.cat([u.expand(*lead, u.shape[-1]), v.flatten(-2).expand(*lead, v.shape[-1] * v.shape[-2])], -1)


def group_heights(problem: Problem, groups: Groups, u: Tensor, v: Tensor) -> Tensor:
    """The height log p(rows | u, v) + log N(v | 0, I) of each group but for its constant, (..., S, G)."""
    eta = problem.fixed + problem.of_client(u) + groups.along(v)
    return groups.summed(problem.terms(eta), 0) - 0.5 * v.square().sum(-1)
