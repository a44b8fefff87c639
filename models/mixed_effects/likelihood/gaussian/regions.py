"""Groups of clients, such as regions of hospitals, whose effects the server eliminates from sums over each group.

Of a gaussian response the sums are C = [Z X y]^T V^-1 [Z X y] of a region's clients, Z the columns of its effects. With
w_r ~ N(0, L L^T) and F F^T = I + L^T C_zz L,

    [X y]^T (V + Z L L^T Z^T)^-1 [X y] = C_[xy][xy] - v^T v,    v = F^-1 L^T C_z[xy],    log |V| gains 2 sum log diag F,

and regions, which share one population, add up. Groups that cross the clients, such as items, are eliminated as one
region is that has all of their columns (:mod:`.crossed`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ...model.equations import MixedModel
from ...model.levels import Level
from .batched import Batched
from .crossed import by_level, matrices, root_above, root_of
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
    method: MixedModel, packed: Tensor, numbers: Tensor, beta: Tensor, noise: Callable[[str, Tensor], Tensor] | None
) -> dict[str, Tensor]:
    """Effects above the clients given the population, by level (D, R + 1, q): their means, or draws; first those of a
    group that is not known.

    Args:
        method: whose.
        packed: as for :func:`without_regions`, (D, R c_r).
        numbers: of the population, (D, k).
        beta: coefficients, (D, p).
        noise: standard normals for the draws, by name, of the shape of what it is given; None for means.
    """
    root, cross, _ = _read(method, packed, numbers)
    number, z = len(cross), {level: cross.new_zeros(len(cross), level.size, level.q) for level in method.above}
    if noise is not None:
        z = {level: noise(level.effects, normal) for level, normal in z.items()}
    normals = torch.cat([normal[:, 1:].reshape(number, matrices(method.above), -1) for normal in z.values()], -1)
    u = Batched(root, cross).effects(beta[:, None, :, None], normals).squeeze(-1)
    u = u if len(z) == 1 else u.flatten(1)
    by_region = {next(iter(z)): u.reshape(number, -1, method.above[0].q)} if len(z) == 1 else by_level(method, u)
    return {
        level.effects: (
            root_of(method, level, numbers).unsqueeze(-3) @ torch.cat([z[level][:, :1], effects], 1)[..., None]
        ).squeeze(-1)
        for level, effects in by_region.items()
    }


def region_covariances(method: MixedModel, level: Level, packed: Tensor, numbers: Tensor) -> Tensor:
    """The covariances of each group's effects given the population and the coefficients, (R, q, q): L (I + L^T C_zz
    L)^-1 L^T.

    Args:
        method: whose.
        level: which of those above the clients.
        packed: as for :func:`without_regions`, (R c_r,).
        numbers: of the population, (k,).
    """
    root, cross, _ = _read(method, packed[None], numbers[None])
    factor = Batched(root, cross).factor()
    half = torch.linalg.solve_triangular(factor, root.mT.expand_as(factor), upper=False)[0]
    every = half.mT @ half  # (R, q, q), or (1, m, m) of all effects that cross the clients
    if not level.crossed:
        return every
    before = itertools.takewhile(lambda other: other.name != level.name, method.above)
    first = sum(other.columns for other in before)
    own = slice(first, first + level.columns)
    apart = every[0, own, own].unflatten(-1, (-1, level.q)).unflatten(0, (-1, level.q))
    return apart.diagonal(dim1=0, dim2=2).movedim(-1, 0)


def outer_root(method: MixedModel, numbers: Tensor) -> Tensor:
    """L of the effects of groups of clients, (..., q, q), learned or held.

    Args:
        method: whose.
        numbers: of the population, (..., k).
    """
    (level,) = method.above
    return root_of(method, level, numbers)


def _read(method: MixedModel, packed: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L (..., 1, q, q), C (..., R, m, m) and log |V| (..., R)."""
    root = root_above(method, numbers).unsqueeze(-3)
    packed = packed.unflatten(-1, (matrices(method.above), -1))
    m = root.shape[-1] + len(method.network.fixed) + 1
    return root, symmetric(packed[..., :-1], m), packed[..., -1]
