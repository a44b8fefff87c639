"""The marginal likelihood of a gaussian response with several levels inside clients, from sums in blocks.

In v = (c_f, rest), f the level that is eliminated, with L of each level and Lambda theirs beside each other,

    K_g = I + L_f^T G_g L_f / s^2,            P_g = L_f K_g^-1 L_f^T / s^4
    S   = G / s^2 - sum_g G_g.^T P_g G_g.     of all columns but f's
    H   = I + Lambda^T S_zz Lambda,           B = Lambda^T S_zY
    Y^T V^-1 Y = S_YY - B^T H^-1 B,           log |V| = n log s^2 - sum log W + sum_g log |K_g| + log |H|,

Y = [Z_out X y] as in :mod:`..gaussian.cross_products`. Derivatives are exact, of :mod:`.jets`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...model.arithmetic import IMPOSSIBLE, sound
from ...model.equations import MixedModel
from ..gaussian.cross_products import in_groups
from ..quadrature.groups import root_of
from .arrow import lower_solve
from .jets import Jet, bilinear, log_determinant, orders, solved
from .layout import Layout
from .schur import Schur
from .sums import Blocks

#: numbers that are held at a time
NUMBERS_PER_PASS = 20_000_000


def polynomial(method: MixedModel, blocks: Blocks, numbers: Tensor) -> dict[str, Tensor]:
    """Each client's packed numbers at a point (k,), and their derivatives: as
    :func:`~..gaussian.cross_products.polynomial`.
    """
    if not len(numbers):
        return {"cross": at_points(method, blocks, numbers[None])[:, 0]}
    copies = (1 + len(numbers)) * (2 + len(numbers)) // 2
    parts = [_polynomial(method, part, numbers) for part in passes(blocks, copies)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _polynomial(method: MixedModel, blocks: Blocks, numbers: Tensor) -> dict[str, Tensor]:
    parts = [Jet.constant(part) for part in blocks[:3]]
    return polynomial_of(method, parts, blocks.rows, Jet.constant(torch.zeros_like(blocks.rows[:, 0])), numbers)


def polynomial_of(
    method: MixedModel, blocks: Sequence[Jet], rows: Tensor, log_w: Jet, numbers: Tensor
) -> dict[str, Tensor]:
    """The same of blocks that may be functions of the numbers, too; arguments as of :func:`jets`."""
    cross, volume = jets(method, blocks, rows, log_w, numbers)
    k, m = len(numbers), cross.value.shape[-1]
    up, across = torch.triu_indices(m, m)
    packed = {order: torch.cat([_part_of(cross, order)[..., up, across], _part_of(volume, order)[..., None]], -1)
              for order in [(), *orders(range(k))]}  # fmt: skip
    slope = torch.stack([packed[(a,)] for a in range(k)], 1)
    bend = torch.stack([torch.stack([packed[min(a, b), max(a, b)] for b in range(k)], 1) for a in range(k)], 1)
    fine = sound(packed[()]).all(1) & sound(slope).flatten(1).all(1) & sound(bend).flatten(1).all(1)
    value = torch.where(fine[:, None], packed[()], 0.0)
    value[:, -1] = torch.where(fine, value[:, -1], -2 * IMPOSSIBLE)
    parts = {"cross": value, "cross_1": torch.where(fine[:, None, None], slope, 0.0)}
    parts["cross_2"] = torch.where(fine[:, None, None, None], bend, 0.0)
    return {name: in_groups(method, value_of_part, rows.mT, -1) for name, value_of_part in parts.items()}


def _part_of(jet: Jet, order: tuple[int, ...]) -> Tensor:
    return jet.parts[order] if order in jet.parts else torch.zeros_like(jet.value)


def jets(
    method: MixedModel, blocks: Sequence[Jet], rows: Tensor, log_w: Jet, numbers: Tensor
) -> tuple[Jet, Jet]:  # fmt: skip
    """Y^T V^-1 Y (S, m, m), and log |V| + n log 2 pi (S,), with derivatives in numbers (k,).

    Args:
        method: whose.
        blocks: diagonal, across and gram of :class:`.sums.Blocks`.
        rows: of clients, as there.
        log_w: what log |W| has beside these rows' own, (S,).
        numbers: of the population.
    """
    diagonal, across, gram = blocks
    layout = Layout.for_method(method)
    roots, log_s = _roots(method, layout, numbers)
    inverse = Jet.constant(numbers.new_ones(()))
    volume = Jet.constant(rows[:, 0] * math.log(2 * math.pi) - rows[:, 1]) - log_w
    if log_s is not None:
        t = (-2 * numbers[log_s]).exp()
        inverse = Jet({(): t, (log_s,): -2 * t, (log_s, log_s): 4 * t})
        volume += Jet({(): 2 * numbers[log_s] * rows[:, 0], (log_s,): 2 * rows[:, 0]})
    own, others = roots[layout.eliminated], [root for k, root in enumerate(roots) if k != layout.eliminated]
    # K_g, and P_g
    g_own = bilinear(lambda matrix, other: matrix.mT @ other, own, bilinear(torch.matmul, diagonal, own))
    eye = torch.eye(own.value.shape[-1]).to(numbers)
    small = bilinear(torch.mul, inverse, g_own) + Jet.constant(eye)
    lower = torch.linalg.cholesky_ex(small.value).L
    of_small = log_determinant(
        small, lambda right: torch.cholesky_solve(right, lower), 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    )
    right = Jet({order: part.mT.expand_as(small.value) for order, part in own.parts.items()})
    p = bilinear(torch.matmul, own, solved(small, lambda matrix: torch.cholesky_solve(matrix, lower), right))
    p = bilinear(torch.mul, bilinear(torch.mul, inverse, inverse), p)
    # S
    left = bilinear(torch.mul, inverse, gram)
    left -= bilinear(
        lambda matrix, other: matrix.flatten(1, 2).mT @ other.flatten(1, 2), across, bilinear(torch.matmul, p, across)
    )
    # H and B
    dense = layout.dense
    z = _along(layout, left.linear(lambda matrix: matrix[:, :, :dense]), others)
    zz = _along(layout, z.linear(lambda matrix: matrix[:, :dense].mT), others)
    h = zz + Jet.constant(torch.eye(dense).to(numbers))
    b = z.linear(lambda matrix: matrix[:, dense:].mT)
    factor = torch.linalg.cholesky_ex(h.value).L

    def solve(right: Tensor) -> Tensor:
        return torch.cholesky_solve(right, factor)

    less = bilinear(lambda matrix, other: matrix.mT @ other, b, solved(h, solve, b))
    of_dense = log_determinant(h, solve, 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1))
    cross = left.linear(lambda matrix: matrix[:, dense:, dense:]) - less
    return cross, volume + of_small.linear(lambda matrix: matrix.sum(-1)) + of_dense


def _along(layout: Layout, x: Jet, roots: list[Jet]) -> Jet:
    """x Lambda, level by level."""
    parts, first = dict[tuple[int, ...], Tensor](), 0
    for part, root in zip(layout.rest, roots, strict=True):
        last = first + part.size

        def turned(
            value_of_order: Tensor, other: Tensor, columns_of_part: slice = slice(first, last), q: int = part.level.q
        ) -> Tensor:
            return (value_of_order[..., columns_of_part].unflatten(-1, (-1, q)) @ other).flatten(-2)

        for order, value in bilinear(turned, x, root).parts.items():
            if order not in parts:
                parts[order] = value.new_zeros(*value.shape[:-1], layout.dense)
            parts[order][..., first:last] = value
        first = last
    return Jet(parts)


def _roots(method: MixedModel, layout: Layout, numbers: Tensor) -> tuple[list[Jet], int | None]:
    """L of each level, learned or held, and which number is log s; None where it is known."""
    first, roots = 0, {}
    fixed = method.settings.prior == "fixed"
    for name, covariance in method.covariances.items():
        if fixed:
            roots[name] = Jet.constant(covariance.matrix(method.first_roots()[name].to(numbers)))
            continue
        value = covariance.matrix(numbers[first : first + covariance.entries])
        parts: dict[tuple[int, ...], Tensor] = {(): value}
        for e, (i, k) in enumerate(covariance.places):
            slope = torch.zeros_like(value)
            slope[i, k] = 1.0
            parts[(first + e,)] = slope
        roots[name] = Jet(parts)
        first += covariance.entries
    is_known = len(numbers) == first or bool(method.network.own) or "log_noise" not in method.sizes
    return [roots[part.level.name] for part in layout.parts], None if is_known else first


def at_points(method: MixedModel, blocks: Blocks, points: Tensor) -> Tensor:
    """Each client's packed numbers at points (M, k): (S, M, c)."""
    clients = []
    for part in passes(blocks, 1):
        parts, schur = [], Schur.from_blocks(part.across)
        for some in points.split(step_of(part)):
            parts.append(packed_points(Reduced.from_blocks(method, part, schur, values_of(method, some))))
        clients.append(torch.cat(parts).transpose(0, 1))
    return in_groups(method, torch.cat(clients), blocks.rows.mT, -1)


def packed_points(at: Reduced) -> Tensor:
    """Packed numbers at points, (M, S, c)."""
    m = at.yy.shape[-1]
    up, across = torch.triu_indices(m, m)
    half = torch.linalg.solve_triangular(at.dense, at.right, upper=False)
    cross = (at.yy - half.mT @ half)[..., up, across]
    volume = at.volume
    fine = (sound(cross).all(-1) & sound(volume))[..., None]
    volume = torch.where(fine, volume[..., None], -2 * IMPOSSIBLE)
    return torch.cat([torch.where(fine, cross, 0.0), volume], -1)


def values_of(method: MixedModel, points: Tensor) -> dict[str, Tensor]:
    """Each level's entries of L (M, r), and log s (M,), learned or held, at points (M, k)."""
    fixed = {name: entries.expand(len(points), -1) for name, entries in method.first_roots().items()}
    return {
        **{name: entries_of_level.to(points) for name, entries_of_level in fixed.items()},
        **method.parts(points[:, : method.k]),
    }


@dataclass(frozen=True)
class Reduced:
    """S clients' sums at D points after the first part is eliminated.

    Attributes:
        roots: L of each part, (D, 1, q, q).
        inverse: 1 / s^2, (D or 1, 1).
        small: the root of K, (D, S, g, q, q).
        dense: the root of H, (D, S, R, R).
        right: B, (D, S, R, m).
        yy: S_YY, (D, S, m, m).
        volume: log |V| + n log 2 pi, (D, S).
    """

    roots: list[Tensor]
    inverse: Tensor
    small: Tensor
    dense: Tensor
    right: Tensor
    yy: Tensor
    volume: Tensor

    @classmethod
    def from_blocks(
        cls, method: MixedModel, blocks: Blocks, schur: Callable[[Tensor], Tensor], values: Mapping[str, Tensor]
    ) -> Reduced:  # fmt: skip
        """Eliminates the first part at the population's values {name: (D, *shape)}."""
        layout = Layout.for_method(method)
        roots = [part.level.root(values[part.level.name])[:, None] for part in layout.parts]
        own, others = roots[layout.eliminated].unsqueeze(2), [r for k, r in enumerate(roots) if k != layout.eliminated]
        log_s = values.get("log_noise")
        inverse = own.new_ones(1, 1) if log_s is None else (-2 * log_s)[:, None].exp()
        t = inverse[..., None, None]
        small = root_of(_eye(own) + own.mT @ blocks.diagonal @ own * t[..., None])
        follow = lower_solve(small, own.mT.expand_as(small)) * t[..., None]  # P is its square
        left = blocks.gram * t - schur(follow.mT @ follow)
        dense = layout.dense
        z = layout.along_rest(left[..., :dense], others)
        root = root_of(_eye(left[..., :dense, :dense]) + layout.along_rest(z[..., :dense, :].mT, others))
        volume = blocks.rows[:, 0] * math.log(2 * math.pi) - blocks.rows[:, 1]
        volume = volume if log_s is None else volume + 2 * log_s[:, None] * blocks.rows[:, 0]
        volume = volume + 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        volume = volume + 2 * small.diagonal(dim1=-2, dim2=-1).log().sum((-1, -2))
        return cls(roots, inverse, small, root, z[..., dense:, :].mT, left[..., dense:, dense:], volume)

    def with_volume(self, volume: Tensor) -> Reduced:
        """The same, of other sums of logarithms."""
        return replace(self, volume=volume)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def step_of(blocks: Blocks) -> int:
    """Points at a time."""
    return max(1, NUMBERS_PER_PASS // (2 * (blocks.across.numel() + blocks.gram.numel())))


def passes(blocks: Blocks, copies: int) -> list[Blocks]:
    """Clients in parts whose numbers, so often, fit into memory."""
    numbers_each = copies * (blocks.across[0].numel() + blocks.gram[0].numel())
    size = max(1, NUMBERS_PER_PASS // numbers_each)
    return [blocks.some(first, first + size) for first in range(0, len(blocks.rows), size)]
