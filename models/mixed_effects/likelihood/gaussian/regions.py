"""Groups of clients, such as regions of hospitals, whose effects the server eliminates from sums over each group.

Of a gaussian response the sums are C = [Z X y]^T V^-1 [Z X y] of a region's clients, Z the columns of its effects. With
w_r ~ N(0, L L^T) and F F^T = I + L^T C_zz L,

    [X y]^T (V + Z L L^T Z^T)^-1 [X y] = C_[xy][xy] - v^T v,    v = F^-1 L^T C_z[xy],    log |V| gains 2 sum log diag F,

and regions, which share one population, add up. Groups that cross the clients, such as items, are eliminated as one
region is that has all of their columns (:mod:`.crossed`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...model.equations import MixedModel
from .batched import Batched
from .crossed import matrices, root_of_all
from .elimination import eliminate, symmetric


def without_regions(method: MixedModel, packed: Tensor, numbers: Tensor) -> Tensor:
    """Packed numbers (..., c) of all regions together, of theirs, one after the other, (..., R c_r).

    Args:
        method: whose regions; without them nothing is done.
        packed: sums over the clients of each region of :func:`.cross_products.packed`.
        numbers: of the population, (..., k).
    """
    if not method.above:
        return packed
    root, cross, volume = _read(method, packed, numbers)
    left, more = eliminate(Batched(root, cross))
    return torch.cat([left, (volume + more)[..., None]], -1).sum(-2)


def region_draws(
    method: MixedModel, packed: Tensor, numbers: Tensor, beta: Tensor, noise: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """The regions' effects given the population, (D, R + 1, q): their means, or draws; first those of an unknown one.

    Args:
        method: whose.
        packed: as for :func:`without_regions`, (D, R c_r).
        numbers: of the population, (D, k).
        beta: coefficients, (D, p).
        noise: standard normals for the draws, of the shape of what it is given; None for means.
    """
    root, cross, _ = _read(method, packed, numbers)
    (level,) = method.above
    z = cross.new_zeros(len(cross), level.size, level.q)
    z = z if noise is None else noise(z)
    u = Batched(root, cross).effects(beta[:, None, :, None], z[:, 1:].reshape(len(z), matrices(level), -1))
    both = torch.cat([z[:, :1, :, None], u.reshape(len(z), level.groups, -1, 1)], 1)
    return (outer_root(method, numbers).unsqueeze(-3) @ both).squeeze(-1)


def region_covariances(method: MixedModel, packed: Tensor, numbers: Tensor) -> Tensor:
    """Of each region's effects given the population and the coefficients, (R, q, q): L (I + L^T C_zz L)^-1 L^T.

    Args:
        method: whose.
        packed: as for :func:`without_regions`, (R c_r,).
        numbers: of the population, (k,).
    """
    root, cross, _ = _read(method, packed[None], numbers[None])
    (level,) = method.above
    factor = Batched(root, cross).factor()
    half = torch.linalg.solve_triangular(factor, root.mT.expand_as(factor), upper=False)[0]
    every = half.mT @ half  # (R, q, q), or (1, I q, I q) of groups that cross the clients
    if not level.crossed:
        return every
    apart = every[0].unflatten(-1, (level.groups, -1)).unflatten(0, (level.groups, -1))
    return apart.diagonal(dim1=0, dim2=2).movedim(-1, 0)


def outer_root(method: MixedModel, numbers: Tensor) -> Tensor:
    """L of the regions' effects, (..., q, q), learned or held.

    Args:
        method: whose.
        numbers: of the population, (..., k).
    """
    (level,) = method.above
    parts = method.parts(numbers[..., : method.k])
    return level.root(parts.get(level.name, method.first_roots()[level.name].to(numbers)))


def _read(method: MixedModel, packed: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L (..., 1, q, q), C (..., R, m, m) and log |V| (..., R)."""
    (level,) = method.above
    root = root_of_all(level, outer_root(method, numbers)).unsqueeze(-3)
    packed = packed.unflatten(-1, (matrices(level), -1))
    m = root.shape[-1] + len(method.network.fixed) + 1
    return root, symmetric(packed[..., :-1], m), packed[..., -1]
