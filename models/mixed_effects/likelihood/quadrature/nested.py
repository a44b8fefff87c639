"""Modes and marginal likelihoods of clients that have groups inside, such as patients of a hospital.

In b = L u and c_g = L_in v_g, u and v_g ~ N(0, I), with A = Z L and B = Z_in L_in, Newton's method is joint. The
curvature has an arrow's shape, H_gg = I + B_g^T W B_g = F_g F_g^T and H_gu = B_g^T W A_g, so that with
M_g = H_gg^-1 H_gu it is solved group by group, and

    F F^T = H_uu - sum_g H_gu^T M_g

is that of u where each v_g follows at -M_g. Given u the groups are independent: each one's integral over v_g is by
quadrature around its own mode, and the client's over u around the joint one (with one node each that is Laplace's
approximation of both together).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch

from ...model.arithmetic import linear, of_groups
from ...model.equations import MixedModel
from ...model.levels import Level
from .newton import Factors, Problem, root_of
from .nodes import nodes_of, rule

#: Newton steps of the groups' modes from where the joint curvature says that they are, at another u
FOLLOWING = 2


def problem_of(method: MixedModel, batch: Batch, shared: Mapping[str, Tensor]) -> Problem:
    """The clients' rows at some shared values; see :meth:`.newton.Problem.of`."""
    flat = Problem.of(method, batch, shared)
    for level in method.inside:
        flat = Nested.inside(flat, level, shared[level.name])
    return flat


@dataclass(frozen=True)
class Nested(Problem):
    """Clients with groups inside: unknowns are [u, v_1, ..., v_G], (..., S, q + G q_in).

    Attributes:
        level: of the groups.
        zl_inner: Z_in L_in, (..., S, n, q_in).
        group: of each row, (S, n).
    """

    level: Level
    zl_inner: Tensor
    group: Tensor

    @classmethod
    def inside(cls, flat: Problem, level: Level, entries: Tensor) -> Nested:
        """With the groups that rows have: entries of L_in as other shared values are."""
        root = level.root(entries)
        z, group = flat.columns.of(level.kind)
        zl = z @ (root.squeeze(-3) if root.dim() > 2 else root)
        return cls(**{**vars(flat), "level": level, "zl_inner": zl, "group": group})

    @cached_property
    def q(self) -> int:
        """Of u."""
        return self.zl.shape[-1]

    def parts(self, unknown: Tensor) -> tuple[Tensor, Tensor]:
        """u (..., S, q), and v (..., S, G, q_in)."""
        v = unknown[..., self.q :]
        return unknown[..., : self.q], v.unflatten(-1, (self.level.size, self.zl_inner.shape[-1]))

    def inner(self, v: Tensor) -> Tensor:
        """What groups' effects add to eta, (..., S, n)."""
        return linear(self.zl_inner, of_groups(v.unsqueeze(-3), self.group))

    def along(self, u: Tensor) -> Tensor:
        """See :meth:`.newton.Problem.along`."""
        own, v = self.parts(u)
        return super().along(own) + self.inner(v)

    def step(self, u: Tensor, *, safe: bool = False) -> tuple[Tensor, Factors]:
        """Newton's step, and F, F_g (..., S, G, q_in, q_in) and M_g (..., S, G, q_in, q)."""
        slope, weight = self.slope_and_weight(u, safe=safe)
        own, v = self.parts(u)
        a, b = self.zl, self.zl_inner
        one = torch.eye(self.q, dtype=u.dtype, device=u.device)
        factor_g, ahead_g = self._of_groups(slope, weight, v)
        across = self.by_group(b[..., :, None] * (weight[..., None] * a)[..., None, :], 2)  # H_gu
        m = torch.cholesky_solve(across, factor_g)
        factor = root_of(one + (a * weight[..., None]).mT @ a - (across.mT @ m).sum(-3))
        ahead = (a * slope[..., None]).sum(-2) - own - (m.mT @ ahead_g[..., None]).squeeze(-1).sum(-2)
        move = torch.cholesky_solve(ahead[..., None], factor).squeeze(-1)
        follow = torch.cholesky_solve(ahead_g[..., None], factor_g) - m @ move[..., None, :, None]
        return torch.cat([move, follow.squeeze(-1).flatten(-2)], -1), (factor, factor_g, m)

    def _of_groups(self, slope: Tensor, weight: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """F_g, and the slope in v."""
        b = self.zl_inner
        one = torch.eye(b.shape[-1], dtype=v.dtype, device=v.device)
        bend = self.by_group(b[..., :, None] * (weight[..., None] * b)[..., None, :], 2)
        return root_of(one + bend), self.by_group(b * slope[..., None], 1) - v

    def by_group(self, x: Tensor, event: int) -> Tensor:
        """Sums over the rows of each group, (..., S, G, *event) of (..., S, n, *event)."""
        lead = torch.broadcast_shapes(x.shape[: x.dim() - event - 1], self.group.shape[:1])
        x = x.expand(*lead, *x.shape[x.dim() - event - 1 :])
        index = self.group.long().view(*self.group.shape, *[1] * event).expand(x.shape)
        zero = x.new_zeros(*lead, self.level.size, *x.shape[x.dim() - event :])
        return zero.scatter_add(len(lead), index, x)

    def marginal_heights(self, u: Tensor, mode: Tensor, factors: Factors) -> Tensor:
        """log p(D_j | u) + log N(u | 0, I) but for its constant, (..., S) of u (..., S, q), by quadrature in v."""
        return self.integrated(u, *self.followed(u, mode, factors)) - 0.5 * u.square().sum(-1)

    def followed(self, u: Tensor, mode: Tensor, factors: Factors) -> tuple[Tensor, Tensor]:
        """The groups' modes v (..., S, G, q_in) at another u, and F_g there; at the mode itself they stay."""
        at, v = self.parts(mode)
        _, factor, m = factors
        v = v - (m @ (u - at)[..., None, :, None]).squeeze(-1)
        for _ in range(FOLLOWING if nodes_of(self.method) > 1 else 0):
            slope, weight = self.slope_and_weight(self.joined(u, v), safe=False)
            factor, ahead = self._of_groups(slope, weight, v)
            v = v + torch.cholesky_solve(ahead[..., None], factor).squeeze(-1)
        return v, factor

    def joined(self, u: Tensor, v: Tensor) -> Tensor:
        """All unknowns together."""
        lead = torch.broadcast_shapes(u.shape[:-1], v.shape[:-2])
        return torch.cat([u.expand(*lead, u.shape[-1]), v.flatten(-2).expand(*lead, v.shape[-1] * v.shape[-2])], -1)

    def integrated(self, u: Tensor, v: Tensor, factor: Tensor) -> Tensor:
        """log p(D_j | u), (..., S), by quadrature around v (..., S, G, q_in) and F_g."""
        q = v.shape[-1]
        at, log_weight = rule(nodes_of(self.method), q, v)
        away = torch.linalg.solve_triangular(factor.mT, at.mT.expand(*factor.shape[:-2], q, len(at)), upper=True)
        heights = self.group_heights(u, v + away.movedim(-1, 0))
        log_weight = log_weight.view(-1, *[1] * (heights.dim() - 1))
        volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * q * np.log(2 * np.pi)
        return ((heights + log_weight).logsumexp(0) - volume).sum(-1)

    def group_heights(self, u: Tensor, v: Tensor) -> Tensor:
        """Of each group log p(rows | u, v) + log N(v | 0, I) but for its constant, (..., S, G)."""
        eta = self.fixed + super().along(u) + self.inner(v)
        return self.by_group(self.terms(eta), 0) - 0.5 * v.square().sum(-1)
