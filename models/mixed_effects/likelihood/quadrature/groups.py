"""Groups inside clients, such as patients of a hospital: their rows, and what the others of a joint step see of them.

In c_g = L_in v_g, v_g ~ N(0, I), with A = Z L, B = Z_in L_in and W of :mod:`.newton`,

    H_gg = I + B_g^T W B_g = F_g F_g^T,    H_gu = B_g^T W A_g                                               (16)
    M_g  = H_gg^-1 H_gu                                                                                     (17)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.shapes import broadcast_shapes

from ...model.arithmetic import linear, of_groups
from ...model.levels import Level


@dataclass(frozen=True)
class Groups:
    """Groups of one level inside clients.

    Attributes:
        level: whose groups.
        zl: Z_in L_in, (..., S, n, q_in).
        group: of each row, (S, n).
    """

    level: Level
    zl: Tensor
    group: Tensor

    @classmethod
    def from_columns(cls, level: Level, columns: Columns, entries: Tensor) -> Groups:
        """Those that rows have: entries of L_in as other shared values are."""
        root = level.root(entries)
        z, group = columns.for_level(level.kind)
        assert group is not None
        return cls(level, z @ (root.squeeze(-3) if root.dim() > 2 else root), group)

    def along(self, v: Tensor) -> Tensor:
        """What the effects add to eta, (..., S, n) of v (..., S, G, q_in)."""
        return linear(self.zl, of_groups(v.unsqueeze(-3), self.group))

    def summed(self, x: Tensor, event: int) -> Tensor:
        """Sums over the rows of each group, (..., S, G, *event) of (..., S, n, *event)."""
        lead = broadcast_shapes(x.shape[: x.dim() - event - 1], self.group.shape[:1])
        x = x.expand(*lead, *x.shape[x.dim() - event - 1 :])
        index = self.group.long().view(*self.group.shape, *[1] * event).expand(x.shape)
        zero = x.new_zeros(*lead, self.level.size, *x.shape[x.dim() - event :])
        return zero.scatter_add(len(lead), index, x)

    def around(self, slope: Tensor, weight: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """F_g (..., S, G, q_in, q_in), and the slope in v (..., S, G, q_in)."""
        b = self.zl
        identity = torch.eye(b.shape[-1], dtype=v.dtype, device=v.device)
        bend = self.summed(b[..., :, None] * (weight[..., None] * b)[..., None, :], 2)
        return root_of(identity + bend), self.summed(b * slope[..., None], 1) - v

    def inner(self, slope: Tensor, weight: Tensor, v: Tensor, zl: Tensor) -> Inner:
        """What a joint step has of the groups, of the client's Z L (..., S, n, q)."""
        factor, slope_v = self.around(slope, weight, v)
        across = self.summed(self.zl[..., :, None] * (weight[..., None] * zl)[..., None, :], 2)  # H_gu
        return Inner(factor, slope_v, across, torch.cholesky_solve(across, factor))


@dataclass(frozen=True)
class Inner:
    """Groups in a joint step: they are eliminated, and follow.

    Attributes:
        factor: F_g, (..., S, G, q_in, q_in).
        slope: in v, (..., S, G, q_in).
        across: H_gu, (..., S, G, q_in, q).
        m: M_g, likewise.
    """

    factor: Tensor
    slope: Tensor
    across: Tensor
    m: Tensor

    @property
    def bend(self) -> Tensor:
        """What the curvature in u loses, (..., S, q, q)."""
        return (self.across.mT @ self.m).sum(-3)

    @property
    def ahead(self) -> Tensor:
        """What the slope in u loses, (..., S, q)."""
        return (self.m.mT @ self.slope[..., None]).squeeze(-1).sum(-2)

    def follow(self, move: Tensor) -> Tensor:
        """The step in v (..., S, G, q_in) that goes with one in u (..., S, q)."""
        own = torch.cholesky_solve(self.slope[..., None], self.factor)
        return (own - self.m @ move[..., None, :, None]).squeeze(-1)


def root_of(curvature: Tensor) -> Tensor:
    """F of F F^T, (..., q, q); not numbers where there is none: one row's failure is its own."""
    factor, failed = torch.linalg.cholesky_ex(curvature)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)
