"""A client's gaussian likelihood given how far its residuals' log standard deviation is from the formula's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...model.equations import MixedModel
from .cross_products import packed
from .elimination import symmetric
from .row_variances import GAMMA, NUMBERS_PER_PASS, Products
from .taylor import Taylor


@dataclass(frozen=True)
class GivenSpread:
    """l_j(theta, e_j).

    Attributes:
        method: whose model.
        products: of S clients' rows.
    """

    method: MixedModel
    products: Products

    @property
    def p(self) -> int:
        """Coefficients, the last of the numbers."""
        return len(self.method.network.fixed)

    @property
    def of_omega(self) -> int:
        """The place among the numbers of omega, in units of the response's spread: the last entry of clients' L."""
        return self.method.covariance.entries - 1

    @property
    def groups(self) -> int:
        """Places for groups inside a client; 1 where there are none."""
        return 1 if self.products.group is None else self.products.group[1]

    def omega(self, numbers: Tensor) -> Tensor:
        """(...) of numbers (..., k)."""
        return numbers[..., self.of_omega] / self.method.network.scale

    def points(self, nodes: int) -> int:
        """How many points go at a time, each with so many nodes."""
        sums = self.products.entries[:, 0].numel() * self.groups
        return max(1, min(self.products.points, NUMBERS_PER_PASS // (nodes * sums)))

    def over(self, gram: Tensor, e: Tensor) -> Tensor:
        """G (..., m, m, groups S) over exp(2 e), e (..., S)."""
        return gram * (-2 * e).exp().repeat(*[1] * (e.dim() - 1), self.groups)[..., None, None, :]

    def heights(self, numbers: Tensor, t: Tensor) -> Tensor:
        """l_j - t^2 / 2 at points (M, k) and nodes t (K, M, S): (K, M, S)."""
        gram, (n, log_w, *rest) = self.products.at(self.method.parts(numbers)[GAMMA])
        e, columns = self.omega(numbers)[:, None] * t, numbers[:, : -self.p].T[..., None].unbind()
        parts = []
        for log_spread in e:
            counts: Any = [n, log_w - 2 * n * log_spread, *rest]
            cross, volume = packed(self.method, self.over(gram, log_spread), counts, columns)
            parts.append(-0.5 * (volume + self._square(cross, numbers)))
        return torch.stack(parts) - 0.5 * t.square()

    def _square(self, cross: Tensor, numbers: Tensor) -> Tensor:
        """(y - X beta)^T V^-1 (y - X beta), (M, S), of its coefficients (M, c, S)."""
        gap = torch.cat([-numbers[:, -self.p :], torch.ones_like(numbers[:, :1])], 1)
        up, across = torch.triu_indices(self.p + 1, self.p + 1, device=numbers.device)
        twice = torch.where(up == across, 1.0, 2.0).to(numbers)
        return torch.einsum("mc,mcs->ms", gap[:, up] * gap[:, across] * twice, cross)

    def around(self, numbers: Tensor, t: Tensor) -> Taylor:
        """The same around a point (k,) at nodes t (K, S), with derivatives in the numbers: (K, S).

        Groups go with all nodes at once: their G is a function of omega at each node.
        """
        k, (nodes, s) = len(numbers) - self.p, t.shape
        names = list(self.method.sizes)
        first = sum(self.method.sizes[name] for name in names[: names.index(GAMMA)])
        gram, (n, log_w, *rest) = self.products.around(self.method.parts(numbers)[GAMMA], first, k)
        assert isinstance(log_w, Taylor)
        assert isinstance(n, Tensor)
        variables = Taylor.variables(numbers[: -self.p])
        e = variables[self.of_omega] * (t / self.method.network.scale).flatten()
        shrink = tiled(tiled(e * -2.0, self.groups, 1, nodes * s).exp(), 1, 1, self.groups * nodes * s)
        whole = tiled(gram, self.groups, nodes, s) * shrink
        counts: Any = [n.repeat(nodes), tiled(log_w, 1, nodes, s) + e * (-2.0 * n.repeat(nodes)), *rest]
        cross, volume = packed(self.method, whole, counts, variables)
        return self._with_beta(cross, volume, numbers[-self.p :], t)

    def _with_beta(self, cross: Taylor, volume: Taylor, beta: Tensor, t: Tensor) -> Taylor:
        """l_j - t^2 / 2, coefficients among its numbers, the last ones."""
        p, gap = self.p, torch.cat([-beta, beta.new_ones(1)])
        value, slope, bend = (symmetric(v.movedim(-2, -1), p + 1) for v in (cross.value, cross.slope, cross.bend))
        square, by, twice = ((v @ gap) @ gap for v in (value, slope, bend))
        of_beta = -2 * (value @ gap)[..., :p].movedim(-1, 0)
        mixed = -2 * (slope @ gap)[..., :p].movedim(-1, 1)  # (k, p, K S)
        within = 2 * value[..., :p, :p].movedim(0, -1)
        slopes = torch.cat([volume.slope + by, of_beta])
        upper = torch.cat([volume.bend + twice, mixed], 1)
        bends = torch.cat([upper, torch.cat([mixed.transpose(0, 1), within], 1)])
        parts = [-0.5 * v.unflatten(-1, t.shape) for v in (volume.value + square, slopes, bends)]
        return Taylor(parts[0] - 0.5 * t.square(), parts[1], parts[2])


def tiled(x: Taylor, groups: int, nodes: int, s: int) -> Taylor:
    """Repeats the last dimension (groups S) once for each node, (groups nodes S); or the same for each group."""
    if nodes == 1 and x.shape[-1] == s:
        parts = (part.repeat(*[1] * (part.dim() - 1), groups) for part in (x.value, x.slope, x.bend))
        return Taylor(*parts)
    parts = (
        part.unflatten(-1, (groups, 1, s)).expand(*part.shape[:-1], groups, nodes, s).flatten(-3)
        for part in (x.value, x.slope, x.bend)
    )
    return Taylor(*parts)
