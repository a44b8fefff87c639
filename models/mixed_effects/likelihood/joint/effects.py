"""Effects of clients with several levels inside, given a gaussian response: normal, from sums in blocks.

v = (b, c_1, c_2, ...) = Lambda u, and u has mean H^-1 Lambda^T Z^T W (y - Z_out w - X beta) / s^2 and covariance H^-1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..moments import cholesky, kept
from .arrow import Arrow
from .layout import Layout
from .packed import NUMBERS_PER_PASS, whitened
from .sums import Blocks, blocks_of


def given(
    method: MixedModel, blocks: Blocks, values: dict[str, Tensor]
) -> tuple[Arrow, tuple[Tensor, Tensor]]:  # fmt: skip
    """H, and F^-1 of the right side, of which F^-T is u's mean, at D draws of the population {name: (D, *shape)}."""
    arrow, (top, low), _, _ = whitened(method, Layout.of(method), blocks, values)
    beta = values["beta"][:, None].expand(-1, len(blocks.rows), -1)
    above = [values[level.effects][:, blocks.rows[:, 2].long()] for level in method.above]
    others = torch.cat([*above, beta, -torch.ones_like(beta[..., :1])], -1)  # (D, S, m)
    return arrow, arrow.forward(-(top @ others[..., None, :, None]), -(low @ others[..., None]))


def modes(method: MixedModel, blocks: Blocks, shared: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """u of the clients themselves (S, q), and F of their marginal precision, at shared values {name: (*shape)}."""
    q = method.covariance.q
    arrow, right = given(method, blocks, {k: v[None] for k, v in shared.items()})
    _, low = arrow.back(*right)
    return low[0, :, :q, 0], precision_root(method, arrow)[0]


def precision_root(method: MixedModel, arrow: Arrow) -> Tensor:
    """F (..., q, q) of the precision of the clients' own effects, all others integrated out."""
    q = method.covariance.q
    return torch.linalg.cholesky_ex(torch.linalg.inv(arrow.covariances()[1][..., :q, :q])).L


def conditional(method: MixedModel, chunk: ClientChunk, shared: State) -> State:
    """Effects' means and roots of their covariances, {name: (S, 1, *shape)}."""
    values = {k: v[None] for k, v in shared.items()}
    parts = []
    for blocks in parts_of(blocks_of(chunk)):
        arrow, right = given(method, blocks, values)
        parts.append(moments(method, arrow, arrow.back(*right), values))
    mean, covariance = (
        {name: torch.cat([part[k][name] for part in parts], 1)[0] for name in parts[0][k]} for k in range(2)
    )
    found = {f"{name}_mean": value for name, value in mean.items()}
    found |= {f"{name}_root": cholesky(value) for name, value in covariance.items()}
    return {k: v.unsqueeze(1) for k, v in found.items()}


def joint(method: MixedModel, chunk: ClientChunk, draws: State, phase: object) -> State:
    """Effects at draws of the population {name: (D, *shape)}; moments are the mixture's own."""
    layout, number = Layout.of(method), len(draws["beta"])
    z, whole = normals_of(layout, chunk, phase, number), blocks_of(chunk)
    step = max(1, NUMBERS_PER_PASS // (2 * (whole.across.numel() + whole.gram.numel())))
    means, covariances, drawn = list[dict[str, Tensor]](), list[dict[str, Tensor]](), list[dict[str, Tensor]]()
    for first in range(0, number, step):
        some = {k: v[first : first + step] for k, v in draws.items()}
        arrow, right = given(method, whole, some)
        mean, covariance = moments(method, arrow, arrow.back(*right), some)
        means.append(mean)
        covariances.append({name: one.sum(0) / number for name, one in covariance.items()})
        normal = layout.split(z[first : first + step])
        moved = arrow.back(right[0] + normal[0][..., None], right[1] + normal[1][..., None])
        drawn.append(of_levels(layout, moved, some))
    return mixed(means, covariances, drawn)


def normals_of(layout: Layout, chunk: ClientChunk, phase: object, number: int) -> Tensor:
    """Standard normals of each client by its own key, (D, S, all effects)."""
    noise, found = chunk.noise(phase, number), []
    for k, part in enumerate(layout.parts):
        size = torch.Size((part.groups, part.level.q))
        found.append(noise.normal("u" if not k else "v" if k == 1 else f"v {k}", None, size).squeeze(2))
    return layout.joined(found)


def mixed(
    means: list[dict[str, Tensor]], covariances: list[dict[str, Tensor]], drawn: list[dict[str, Tensor]]
) -> State:
    """What is kept of draws, of their means given the population, and of shares of the mean covariance."""
    out: State = {}
    for name in means[0]:
        mean, every = (torch.cat([one[name] for one in parts]) for parts in (means, drawn))
        gap = mean - mean.mean(0)
        between = torch.einsum("d...i,d...j->...ij", gap, gap) / len(gap)
        out |= kept(name, mean.mean(0), torch.stack([one[name] for one in covariances]).sum(0) + between, every)
    return out


def of_levels(layout: Layout, u: tuple[Tensor, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Effects L u by name, (D, S, q) of clients and (D, S, groups, q) inside, of u (..., g, q, 1) and (..., R, 1)."""
    found = {}
    every = layout.of_parts(layout.together(u[0].squeeze(-1), u[1].squeeze(-1)))
    for part, one in zip(layout.parts, every, strict=True):
        effects = one @ part.level.root(values[part.level.name])[:, None].mT
        found[part.level.effects] = effects if part.level.inside else effects.squeeze(-2)
    return found


def moments(
    method: MixedModel, arrow: Arrow, u: tuple[Tensor, Tensor], values: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Means, and covariances of each group's effects by themselves, (D, S, q, q) and (D, S, groups, q, q)."""
    layout = Layout.of(method)
    first, rest = arrow.covariances()
    found, at = {}, 0
    for k, part in enumerate(layout.parts):
        if k == layout.eliminated:
            own = first
        else:
            q, last = part.level.q, at + part.size
            square = rest[..., at:last, at:last].unflatten(-1, (-1, q)).unflatten(-3, (-1, q))  # (..., g, q, g, q)
            own, at = square.diagonal(dim1=-4, dim2=-2).movedim(-1, -3), last
        root = part.level.root(values[part.level.name])[:, None, None]
        spread = root @ own @ root.mT
        found[part.level.effects] = spread if part.level.inside else spread.squeeze(-3)
    return of_levels(layout, u, values), found


def parts_of(blocks: Blocks) -> list[Blocks]:
    """Clients whose numbers fit into memory."""
    size = max(1, NUMBERS_PER_PASS // (2 * (blocks.across[0].numel() + blocks.gram[0].numel())))
    return [blocks.some(first, first + size) for first in range(0, len(blocks.rows), size)]
