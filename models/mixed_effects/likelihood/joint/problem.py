"""Newton's method to the joint mode of all effects of a client, and Laplace's approximation there.

In v = Lambda u, u ~ N(0, I), A = Z Lambda and W minus the second derivatives of log p(y | eta),

    u  <-  u + t H^-1 (A^T d log p / d eta - u),     H = I + A^T W A
    log p(D_j | theta)  ~  log p(y | u) - u^T u / 2 - log |H| / 2          at the mode

(Tierney and Kadane, 1986; lme4's nAGQ = 1). A random intercept of few rows that are 0 or 1 is too small by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch

from ...model.arithmetic import curve, linear, of_groups
from ...model.equations import MixedModel
from ..quadrature.newton import Factors, Problem
from .arrow import Arrow
from .layout import Layout
from .products import own_sums, products


@dataclass(frozen=True)
class JointProblem(Problem):
    """The problem of :class:`~..quadrature.newton.Problem` with unknowns u of all levels, client by client.

    Attributes:
        layout: of the unknowns.
        each: of each level, Z L (..., S, n, q) and each row's group (S, n).
    """

    layout: Layout | None = None
    each: tuple[tuple[Tensor, Tensor], ...] = ()

    @classmethod
    def of_levels(cls, method: MixedModel, batch: Batch, shared: Mapping[str, Tensor]) -> JointProblem:
        """The problem at shared values; these are as in :meth:`~..quadrature.newton.Problem.from_batch`."""
        layout, columns = Layout.for_method(method), method.network.split(batch.x)
        values = {name: shared[name] for name in method.response_family.starts}
        fixed = method.predictor(columns, shared["beta"])
        for level in method.above:
            z, group = columns.for_level(level.kind)
            if level.smooth:
                fixed = fixed + curve(z, shared[level.effects])
                continue
            assert group is not None
            fixed = fixed + linear(z, shared["w"] if "w" in shared else of_groups(shared[level.effects], group))
        columns_of_levels = []
        for part, (z, group) in zip(layout.parts, layout.columns(columns), strict=True):
            root = part.level.root(shared[part.level.name])
            columns_of_levels.append((z @ (root.squeeze(-3) if root.dim() > 2 else root), group))
        return cls(
            method,
            batch.y,
            batch.mask,
            columns,
            values,
            fixed,
            columns_of_levels[0][0],
            None,
            layout,
            tuple(columns_of_levels),
        )

    def along(self, unknown: Tensor) -> Tensor:
        """What random effects add to eta, (..., S, n) of all unknowns."""
        assert self.layout is not None
        total = torch.zeros(())
        for part, (zl, group), u in zip(self.layout.parts, self.each, self.layout.of_parts(unknown), strict=True):
            total = total + linear(zl, of_groups(u.unsqueeze(-3), group) if part.level.inside else u)
        return total

    def step(self, unknown: Tensor, *, safe: bool = False) -> tuple[Tensor, Factors]:
        """Newton's step, and H, factored: the parts of :class:`.arrow.Arrow`."""
        layout = self.layout
        assert layout is not None
        slope, weight = self.slope_and_weight(unknown, safe=safe)
        arrow = Arrow.from_blocks(*products(layout, self.each, weight))
        ahead = layout.joined(
            [
                own_sums(zl, group, part.groups, slope[..., None]).squeeze(-1)
                for part, (zl, group) in zip(layout.parts, self.each, strict=True)
            ]
        )
        first, rest = layout.split(ahead - unknown)
        first, rest = arrow.solve(first[..., None], rest[..., None])
        return layout.together(first.squeeze(-1), rest.squeeze(-1)), (arrow.small, arrow.half, arrow.dense)

    def laplace(self, mode: Tensor, factors: Factors) -> Tensor:
        """The approximation, (..., S)."""
        return self.heights(mode) - Arrow(*factors).log_volume


def numbers_of(method: MixedModel) -> int:
    """That a point holds of a client beside its rows."""
    return Layout.for_method(method).numbers if len(method.inside) > 1 else 0


def problem_of(method: MixedModel, batch: Batch, shared: Mapping[str, Tensor]) -> Problem:
    """Returns the problem of levels inside clients, however many."""
    return (JointProblem.of_levels if len(method.inside) > 1 else Problem.from_batch)(method, batch, shared)
