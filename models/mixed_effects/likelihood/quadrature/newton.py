"""Each client's posterior of its random effects at given shared values: mode and curvature, by Newton's method.

In b = L u, u ~ N(0, I), with A = Z L and W = diag of minus the second derivatives of log p(y | eta):

    u  <-  u + t H^-1 (A^T d log p(y | eta) / d eta - u),    H = I + A^T W A = F F^T

With groups inside a client (:mod:`.groups`) the step is joint. The curvature has an arrow's shape, and is solved group
by group, innermost outward: (17) F F^T = H - sum_g H_gu^T M_g is that of u where each v_g follows at -M_g.

Log likelihoods that are concave are generalised self-concordant in eta (their third derivative is never above the
second), for which steps damped by t = log(1 + r) / r, r how far eta would go, converge from anywhere (Sun and
Tran-Dinh, Math. Programming 2019). For others a step also has to raise the height.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Columns

from ...model.arithmetic import curve, linear, of_groups
from ...model.equations import MixedModel
from .groups import Groups, root_of

#: Newton steps to a mode, at most, and the length of the last one on the scale of eta
NEWTON_STEPS, NEWTON_TOLERANCE = 100, 1e-8
#: the same tolerance where a mode only places nodes, and where it only places proposals. The error that is left is
#: about the square of the last step.
NEAR_NODES, NEAR_PROPOSALS = 1e-4, 1e-2
#: steps of a search on what bends both ways, and the height that the last one has gained
CLIMBING_STEPS, CLIMBED = 50, 1e-6
#: what describes the curvature at a mode: F of a client's effects first
Factors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Problem:
    """The clients' rows at some shared values.

    Attributes:
        method: whose model.
        y, mask: of the rows, (S, n).
        columns: theirs.
        values: the family's own numbers.
        fixed: the linear predictor without random effects, (..., S, n).
        zl: Z L, (..., S, n, q).
        groups: inside the clients; None for none. Then unknowns are [u, v_1, ..., v_G], (..., S, q + G q_in).
    """

    method: MixedModel
    y: Tensor
    mask: Tensor | None
    columns: Columns
    values: Mapping[str, Tensor]
    fixed: Tensor
    zl: Tensor
    groups: Groups | None = None

    @classmethod
    def from_batch(cls, method: MixedModel, batch: Batch, shared: Mapping[str, Tensor]) -> Problem:
        """The problem at shared values by short names: of all clients, (..., 1, 1, *shape), or of each, (S, 1, *shape).

        Effects of groups of clients are each client's own, w (..., S, 1, q_out), or those of all, "regions".
        """
        columns = method.network.split(batch.x)
        root = method.covariance.matrix(shared["root"])
        values = {name: shared[name] for name in method.response_family.starts}
        zl = columns.z @ (root.squeeze(-3) if root.dim() > 2 else root)
        fixed = method.predictor(columns, shared["beta"])
        for level in method.above:
            z, group = columns.for_level(level.kind)
            if level.smooth:
                fixed = fixed + curve(z, shared[level.effects])
                continue
            assert group is not None
            fixed = fixed + linear(z, shared["w"] if "w" in shared else of_groups(shared[level.effects], group))
        groups = [Groups.from_columns(level, columns, shared[level.name]) for level in method.inside]
        return cls(method, batch.y, batch.mask, columns, values, fixed, zl, *groups)

    def parts(self, unknown: Tensor) -> tuple[Tensor, Tensor | None]:
        """u (..., S, q), and v (..., S, G, q_in) where there are groups."""
        q = self.zl.shape[-1]
        if self.groups is None:
            return unknown, None
        return unknown[..., :q], unknown[..., q:].unflatten(-1, (self.groups.level.size, self.groups.zl.shape[-1]))

    def of_client(self, u: Tensor) -> Tensor:
        """What the clients' own effects add to eta, (..., S, n) of u (..., S, q)."""
        return linear(self.zl, u.unsqueeze(-2))

    def along(self, unknown: Tensor) -> Tensor:
        """What random effects add to eta, (..., S, n) of all unknowns."""
        u, v = self.parts(unknown)
        own = self.of_client(u)
        return own if self.groups is None or v is None else own + self.groups.along(v)

    def eta(self, u: Tensor) -> Tensor:
        """(..., S, n) of all unknowns."""
        return self.fixed + self.along(u)

    def terms(self, eta: Tensor) -> Tensor:
        """log p(y | eta), each row's as often as it counts, (..., S, n)."""
        return self.counted(self.method.response(eta, self.values, self.columns).log_prob(self.y))

    def heights(self, u: Tensor) -> Tensor:
        """log p(D_j | u) + log N(u | 0, I) but for its constant, (..., S)."""
        eta, columns = self.eta(u), self.columns
        total = None
        if columns.weight is None and not eta.requires_grad:
            total = self.method.response_family.log_total(eta, self.y, self.values, columns, self.mask)
        return (self.terms(eta).sum(-1) if total is None else total) - 0.5 * u.square().sum(-1)

    def slope_and_weight(self, u: Tensor, *, safe: bool) -> tuple[Tensor, Tensor]:
        """The slope and weight of the rows' log densities in eta, (..., S, n): a safe weight is of a concave function
        that touches in u.
        """
        family, arguments = self.method.response_family, (self.eta(u), self.y, self.values, self.columns)
        slope, weight = family.slope_and_weight(*arguments)
        weight = family.safe_weight(*arguments) if safe else weight
        return self.counted(slope), self.counted(weight)

    def counted(self, terms: Tensor) -> Tensor:
        """Values times the rows' weights; padding counts 0."""
        terms = terms if self.columns.weight is None else terms * self.columns.weight
        return terms if self.mask is None else torch.where(self.mask, terms, 0.0)

    def far(self, move: Tensor) -> Tensor:
        """How far a step would move eta, in units in which it spreads by about one, (..., S)."""
        return self.along(move).abs().amax(-1) / self.method.response_family.unit

    def step(self, unknown: Tensor, *, safe: bool = False) -> tuple[Tensor, Factors]:
        """Newton's step, and F (..., S, q, q); with groups F_g, and M_g (..., S, G, q_in, q), too."""
        slope, weight = self.slope_and_weight(unknown, safe=safe)
        (u, v), a = self.parts(unknown), self.zl
        identity = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
        inner = None if self.groups is None or v is None else self.groups.inner(slope, weight, v, a)
        bend = identity + (a * weight[..., None]).mT @ a
        factor = root_of(bend if inner is None else bend - inner.bend)
        ahead = (a * slope[..., None]).sum(-2) - u
        ahead = ahead if inner is None else ahead - inner.ahead
        move = torch.cholesky_solve(ahead[..., None], factor).squeeze(-1)
        if inner is None:
            return move, (factor,)
        return torch.cat([move, inner.follow(move).flatten(-2)], -1), (factor, inner.factor, inner.m)

    @torch.no_grad()
    def mode(self, start: Tensor, tolerance: float = NEWTON_TOLERANCE) -> tuple[Tensor, Factors]:
        """u (..., S, q), and F (..., S, q, q) first; a row that has arrived stays where it is.

        Args:
            start: (S, q).
            tolerance: the length of the last step on the scale of eta.
        """
        u = start.expand(*self.fixed.shape[:-1], start.shape[-1])
        if not self.method.response_family.concave:
            u = self._climbed(u)
        move, factors = self.step(u)
        moving = torch.ones_like(u[..., 0], dtype=torch.bool)
        for _ in range(NEWTON_STEPS):
            far = self.far(move)
            u = torch.where(moving[..., None], u + damping(far)[..., None] * move, u)
            moving = moving & (far >= tolerance)  # not where it is not a number
            # a GPU takes steps that change nothing rather than being waited for at each
            if u.device.type == "cpu" and not moving.any():
                break
            move, ahead = self.step(u)
            factors = tuple(
                torch.where(moving.view(*moving.shape, *[1] * (new.dim() - moving.dim())), new, old)
                for new, old in zip(ahead, factors, strict=True)
            )
        return u, factors

    def _climbed(self, u: Tensor) -> Tensor:
        """Steps near a maximum of a likelihood that is not concave: Newton's where they climb, safe ones elsewhere.

        Where steps are negligible the curvature is that of a maximum, and Newton's method can end the search.
        """
        height = self.heights(u)
        for _ in range(CLIMBING_STEPS):
            best, top = u, height
            for safe in (True, False):
                move, _ = self.step(u, safe=safe)
                move = damping(self.far(move))[..., None] * move
                reached = self.heights(u + move)
                higher = reached > top
                best, top = torch.where(higher[..., None], u + move, best), torch.where(higher, reached, top)
            # a GPU takes steps that change nothing rather than being waited for at each
            if u.device.type == "cpu" and not (top - height > CLIMBED).any():
                return best
            u, height = best, top
        return u

    def differentiable(self, u: Tensor) -> tuple[Tensor, Factors]:
        """The same mode and factors as functions of the shared values.

        Newton's step from the mode has the mode's first derivatives, and a second one the second: its error is that of
        the point before, squared.
        """
        for _ in range(2):
            u = u + self.step(u)[0]
        return u, self.step(u)[1]


def damping(far: Tensor) -> Tensor:
    """The share t = log(1 + r) / r of a Newton step that would move eta by r."""
    return torch.log1p(far) / far.clamp_min(NEWTON_TOLERANCE)
