"""Effects of clients with several levels inside, given a gaussian response: normal, from sums in blocks.

With a = (-w, -beta, 1), the coefficients of Y = [Z_out X y] in the residual, and K, S, H and B of :mod:`.packed`,

    u_rest ~ N(H^-1 B a, H^-1)                                                  effects are Lambda u_rest
    u_g | u_rest ~ N(K_g^-1 L_f^T (E_gY a - E_gz Lambda u_rest) / s^2, K_g^-1)  and L_f u_g
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..moments import cholesky
from .arrow import Arrow, lower_solve, upper_solve
from .kept import EXACT, covariances_of, mixed, normals_of, of_levels, precision_root
from .layout import Layout
from .packed import Reduced, passes, step_of
from .schur import Schur
from .sums import Blocks, blocks_of


def residual(method: MixedModel, blocks: Blocks, values: Mapping[str, Tensor]) -> Tensor:
    """a, (D, S, m, 1), at D points {name: (D, *shape)}."""
    beta = values["beta"][:, None].expand(-1, len(blocks.rows), -1)
    above = [
        values[level.effects][:, 1:].flatten(1)[:, None].expand(-1, len(blocks.rows), -1) if level.crossed
        else values[level.effects][:, blocks.rows[:, 2].long()]
        for level in method.above
    ]  # fmt: skip
    return torch.cat([*(-effects for effects in above), -beta, torch.ones_like(beta[..., :1])], -1)[..., None]


def drawn(
    layout: Layout, blocks: Blocks, at: Reduced, a: Tensor, noise: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """u of the first part (D, S, g, q, c) and of the rest (D, S, R, c): means, moved by noise of these shapes."""
    columns = noise[1].shape[-1]
    half = torch.linalg.solve_triangular(at.dense, at.right @ a, upper=False)
    rest = torch.linalg.solve_triangular(at.dense.mT, half + noise[1], upper=True)
    turned = layout.along_rest(rest.mT, [root.mT for k, root in enumerate(at.roots) if k != layout.eliminated])
    both = torch.cat([-turned.mT, a.expand(*a.shape[:-1], columns)], -2)  # (D, S, R + m, c)
    if blocks.across.dim() == 4:
        flat = blocks.across.flatten(1, 2) @ both.permute(1, 2, 0, 3).flatten(2)  # all points at once
        flat = flat.unflatten(-1, (-1, columns)).permute(2, 0, 1, 3)
    else:
        flat = blocks.across.flatten(-3, -2) @ both
    flat = flat.unflatten(-2, blocks.across.shape[-3:-1])
    own = at.roots[layout.eliminated].unsqueeze(2)
    flat = flat * own if layout.first.level.q == 1 else own.mT @ flat
    first = lower_solve(at.small, flat * at.inverse[..., None, None, None])
    return upper_solve(at.small, first + noise[0]), rest


def arrow_of(layout: Layout, blocks: Blocks, at: Reduced) -> Arrow:
    """H of all effects, factored."""
    own, others = (
        at.roots[layout.eliminated].unsqueeze(2),
        [r for k, r in enumerate(at.roots) if k != layout.eliminated],
    )
    across = own.mT @ blocks.across[..., : layout.dense] * at.inverse[..., None, None, None]
    turned = layout.along_rest(across, [root.unsqueeze(2) for root in others])
    return Arrow(at.small, lower_solve(at.small, turned), at.dense)


def modes(method: MixedModel, blocks: Blocks, shared: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """u of the clients themselves (S, q), and F of their marginal precision, at shared values {name: (*shape)}."""
    values = {k: v[None] for k, v in shared.items()}
    return modes_of(method, blocks, Reduced.from_blocks(method, blocks, Schur(blocks.across), values), values)


def modes_of(
    method: MixedModel, blocks: Blocks, at: Reduced, values: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same of sums at one point."""
    u = torch.cholesky_solve(at.right @ residual(method, blocks, values), at.dense)
    return u[0, :, : method.covariance.q, 0], precision_root(method, at.dense)[0]


def conditional(method: MixedModel, chunk: ClientChunk, shared: State) -> State:
    """Effects' means and roots of their covariances, {name: (S, 1, *shape)}."""
    values, parts = {k: v[None] for k, v in shared.items()}, list[State]()
    for blocks in passes(blocks_of(chunk), 2):
        at = Reduced.from_blocks(method, blocks, Schur(blocks.across), values)
        parts.append(conditional_of(method, blocks, at, values))
    return {k: torch.cat([part[k] for part in parts]).unsqueeze(1) for k in parts[0]}


def conditional_of(method: MixedModel, blocks: Blocks, at: Reduced, values: State) -> State:
    """The same of sums at one point, {name: (S, *shape)}."""
    layout = Layout.for_method(method)
    nothing = torch.zeros_like(at.small[..., :1]), torch.zeros_like(at.dense[..., :1])
    mean = of_levels(layout, drawn(layout, blocks, at, residual(method, blocks, values), nothing), values)
    covariance = covariances_of(layout, arrow_of(layout, blocks, at), values)
    values_of = {f"{name}_mean": value[0] for name, value in mean.items()}
    return {**values_of, **{f"{name}_root": cholesky(value[0]) for name, value in covariance.items()}}


class Joint(NamedTuple):
    """What draws are made from.

    Attributes:
        points: of the population at a time.
        reduced: at these, {name: (D, *shape)}, sums, and what is left of them.
    """

    points: int
    reduced: Callable[[State], tuple[Blocks, Reduced]]


def joint(method: MixedModel, chunk: ClientChunk, draws: State, phase: object) -> State:
    """Effects at draws of the population {name: (D, *shape)}; moments are the mixture's own."""
    whole = blocks_of(chunk)
    schur = Schur.from_blocks(whole.across)
    source = Joint(step_of(whole), lambda some: (whole, Reduced.from_blocks(method, whole, schur, some)))
    return joint_of(method, chunk, draws, phase, source)


def joint_of(method: MixedModel, chunk: ClientChunk, draws: State, phase: object, source: Joint) -> State:
    """The same of sums that may differ between draws."""
    layout, number = Layout.for_method(method), len(draws["beta"])
    z, step = normals_of(layout, chunk, phase, number), source.points
    means, covariances, every = list[dict[str, Tensor]](), list[dict[str, Tensor]](), list[dict[str, Tensor]]()
    for first in range(0, number, step):
        some = {k: v[first : first + step] for k, v in draws.items()}
        blocks, at = source.reduced(some)
        a = residual(method, blocks, some)
        noise = layout.split(z[first : first + step])
        normal, rest = (torch.stack([torch.zeros_like(draw), draw], -1) for draw in noise)
        first_u, rest_u = drawn(layout, blocks, at, a, (normal, rest))
        means.append(of_levels(layout, (first_u[..., :1], rest_u[..., :1]), some))
        every.append(of_levels(layout, (first_u[..., 1:], rest_u[..., 1:]), some))
        if layout.numbers <= EXACT:
            covariances.append(covariances_of(layout, arrow_of(layout, blocks, at), some))
    return mixed(means, covariances, every)
