"""Groups of clients whose response is not gaussian: the server integrates out the groups' effects by quadrature.

With w_r = L u_r, u_r ~ N(0, I), and l_j(theta, w) the log marginal likelihood of a client given its region's effects,

    log p(D_r | theta) = log integral exp(sum of l_j(theta, L u) over the region's clients) N(u | 0, I) du

Clients answer at nodes of u. The nodes are placed by the integrand's mode and curvature, which follow from the clients'
last derivatives by w at the middle node:

    sum_j l_j  ~  slope^T (w - w_0) - (w - w_0)^T bend (w - w_0) / 2 - (w - w_0)^T across (theta - theta_0)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..gaussian.regions import outer_root
from .nodes import REGION_NODES, away, integral_at, weighted

#: nodes stay where they are while the mode is so near to the middle one, in standard deviations, and the logarithm of
#: the standard deviation to what it was
MAX_NODE_CHANGE = 0.3
#: a height by nodes around one point and by those around another differ by this, relative to it
MOVED_NODES = 1e-6
#: how often clients are asked about the same point for the nodes' sake
MAX_NODE_MOVES = 10


def node_count(method: MixedModel) -> int:
    """Nodes of a region, K."""
    q = method.above[0].q
    return int(REGION_NODES[q] ** q)


@dataclass(frozen=True)
class RegionExpansion:
    """An expansion of the regions' likelihoods in their effects, by which nodes are placed.

    Attributes:
        at: theta_0, (k,).
        w: w_0, (R, q).
        slope, bend, across: see above, (R, q), (R, q, q) and (R, q, k).
    """

    at: Tensor
    w: Tensor
    slope: Tensor
    bend: Tensor
    across: Tensor

    @classmethod
    def read(cls, method: MixedModel, state: Mapping[str, Tensor]) -> RegionExpansion:
        """What :meth:`state` has written; before, nothing is known."""
        if "regions.at" in state:
            return cls(**{f.name: state[f"regions.{f.name}"] for f in fields(cls)})
        k, r, q = method.k, method.above[0].groups, method.above[0].q
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in ((k,), (r, q), (r, q), (r, q, q), (r, q, k))))

    @classmethod
    def from_sums(cls, method: MixedModel, sums: Mapping[str, Tensor], at: Tensor, w: Tensor) -> RegionExpansion:
        """Reads the expansion around the middle node from a round's sums.

        Args:
            method: whose.
            sums: slope (R K, k + q) and curvature.
            at: theta, (k,).
            w: the nodes, (R, K, q).
        """
        middle, k = w.shape[1] // 2, method.k
        slope, bend = (sums[name].unflatten(0, w.shape[:2])[:, middle] for name in ("slope", "curvature"))
        return cls(at, w[:, middle], slope[:, k:], bend[:, k:, k:], bend[:, k:, :k])

    def state(self) -> State:
        """All of it by name."""
        return {f"regions.{f.name}": getattr(self, f.name) for f in fields(self)}

    def around(self, method: MixedModel, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The mode u (..., R, q), and F (..., R, q, q) of the curvature F F^T there, at numbers (..., k)."""
        root = outer_root(method, numbers).unsqueeze(-3)
        values, vectors = torch.linalg.eigh(self.bend)
        bend = (vectors * values.clamp_min(0).unsqueeze(-2)) @ vectors.mT
        step = (numbers - self.at)[..., None, :, None]
        ahead = (self.slope + (bend @ self.w[..., None]).squeeze(-1))[..., None] - self.across @ step
        identity = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        factor = torch.linalg.cholesky_ex(identity + root.mT @ bend @ root).L
        u = torch.cholesky_solve(root.mT @ ahead, factor).squeeze(-1)
        return u, factor

    def nodes(self, method: MixedModel, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """u at the nodes (..., R, K, q), and F, at numbers (..., k)."""
        u, factor = self.around(method, numbers)
        far, _ = away(factor, REGION_NODES[u.shape[-1]], u)
        return u.unsqueeze(-2) + far.mT, factor

    def effects(self, method: MixedModel, numbers: Tensor) -> Tensor:
        """w at the nodes (..., R, K, q)."""
        u, _ = self.nodes(method, numbers)
        return u @ outer_root(method, numbers).mT.unsqueeze(-3)

    def near(self, method: MixedModel, other: RegionExpansion, numbers: Tensor) -> bool:
        """Whether another expansion places about the same nodes at numbers (k,)."""
        (u, factor), (u_2, factor_2) = self.around(method, numbers), other.around(method, numbers)
        far = (factor.mT @ (u_2 - u)[..., None]).norm(dim=-2).max()
        wider = (torch.linalg.solve_triangular(factor, factor_2, upper=False).diagonal(dim1=-2, dim2=-1)).log().abs()
        return bool(far < MAX_NODE_CHANGE) and bool(wider.max() < MAX_NODE_CHANGE)


def log_integrals(heights: Tensor, u: Tensor, factor: Tensor) -> Tensor:
    """log p(D | theta), the sum over regions, (...), of heights (..., R, K) at nodes."""
    return integral_at(heights, u, factor, REGION_NODES[u.shape[-1]]).sum(-1)


def moved_heights(
    method: MixedModel, sums: Mapping[str, Tensor], expansion: RegionExpansion, start: Tensor, step: Tensor
) -> Tensor:
    """log p(D | theta) a step from where clients were, (), nodes of u held: parabolas in theta and w = L u.

    Args:
        method: whose.
        sums: height (R K,), slope (R K, k + q) and curvature of a round.
        expansion: from which the nodes were.
        start: where clients were, (k,).
        step: (k,).
    """
    u, factor = expansion.nodes(method, start)
    moved = u @ (outer_root(method, start + step) - outer_root(method, start)).mT
    d = torch.cat([step.expand(*moved.shape[:-1], len(step)), moved], -1).flatten(0, 1)
    bend = (d[:, None] @ sums["curvature"] @ d[..., None]).flatten()
    heights = sums["height"] + (sums["slope"] * d).sum(-1) - 0.5 * bend
    return log_integrals(heights.unflatten(0, u.shape[:2]), u, factor)


def drawn_regions(
    method: MixedModel, heights: Tensor, expansion: RegionExpansion, numbers: Tensor,
    noise: Callable[[Tensor], Tensor] | None,
) -> Tensor:  # fmt: skip
    """The regions' effects given the population, (D, R + 1, q): their means, or normal draws with the integrand's mean
    and covariance; first those of an unknown region.

    Args:
        method: whose.
        heights: at the nodes, (D, R K).
        expansion: from which the nodes were.
        numbers: of the population, (D, k).
        noise: standard normals of the shape of what it is given; None for means.
    """
    u, _ = expansion.nodes(method, numbers)
    weights = weighted(heights.unflatten(-1, u.shape[1:3]), u, REGION_NODES[u.shape[-1]]).softmax(-1)[..., None]
    mean = (weights * u).sum(-2)
    z = mean.new_zeros(len(mean), method.above[0].size, mean.shape[-1])
    if noise is not None:
        gap = u - mean.unsqueeze(-2)
        spread = torch.linalg.cholesky_ex(gap.mT @ (weights * gap)).L
        z = noise(z)
        mean = mean + (spread @ z[:, 1:, :, None]).squeeze(-1)
    both = torch.cat([z[:, :1], mean], 1)
    return both @ outer_root(method, numbers).mT
