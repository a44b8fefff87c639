"""What is kept of effects of several levels: means, roots of covariances, and draws."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.state import State

from ...model.equations import MixedModel
from ..moments import kept
from .arrow import Arrow
from .layout import Layout

#: numbers of a factored curvature up to which covariances at each draw of the population are worked out; of more they
#: are the draws' own
EXACT = 100_000


def normals_of(layout: Layout, chunk: ClientChunk, phase: object, number: int) -> Tensor:
    """Standard normals of each client by its own key, (D, S, all effects)."""
    noise, parts = chunk.noise(phase, number), []
    for k, part in enumerate(layout.parts):
        size = torch.Size((part.groups, part.level.q))
        parts.append(noise.normal("u" if not k else "v" if k == 1 else f"v {k}", None, size).squeeze(2))
    return layout.joined(parts)


def of_levels(layout: Layout, u: tuple[Tensor, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Effects L u by name, (D, S, q) of clients and (D, S, groups, q) inside, of u (..., g, q, 1) and (..., R, 1)."""
    by_name = {}
    every = layout.of_parts(layout.together(u[0].squeeze(-1), u[1].squeeze(-1)))
    for part, of_level in zip(layout.parts, every, strict=True):
        effects = of_level @ part.level.root(values[part.level.name])[:, None].mT
        by_name[part.level.effects] = effects if part.level.inside else effects.squeeze(-2)
    return by_name


def mixed(
    means: list[dict[str, Tensor]], covariances: list[dict[str, Tensor]], drawn: list[dict[str, Tensor]]
) -> State:
    """What is kept of draws (D, S, ...), of their means given the population, and of their covariances given it."""
    out: State = {}
    for name in means[0]:
        mean, every = (torch.cat([values[name] for values in parts]) for parts in (means, drawn))
        within = torch.cat([values[name] for values in covariances]).mean(0) if covariances else 0.0
        if not covariances:
            away = every - mean
            within = torch.einsum("d...i,d...j->...ij", away, away) / len(away)
        gap = mean - mean.mean(0)
        between = torch.einsum("d...i,d...j->...ij", gap, gap) / len(gap)
        out |= kept(name, mean.mean(0), within + between, every)
    return out


def covariances_of(layout: Layout, arrow: Arrow, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The covariances of each group's effects by themselves, (D, S, q, q) and (D, S, groups, q, q)."""
    first, rest = arrow.covariances()
    by_name, at = {}, 0
    for k, part in enumerate(layout.parts):
        if k == layout.eliminated:
            own = first
        else:
            q, last = part.level.q, at + part.size
            square = rest[..., at:last, at:last].unflatten(-1, (-1, q)).unflatten(-3, (-1, q))  # (..., g, q, g, q)
            own, at = square.diagonal(dim1=-4, dim2=-2).movedim(-1, -3), last
        root = part.level.root(values[part.level.name])[:, None, None]
        spread = root @ own @ root.mT
        by_name[part.level.effects] = spread if part.level.inside else spread.squeeze(-3)
    return by_name


def precision_root(method: MixedModel, dense: Tensor) -> Tensor:
    """F (..., q, q) of the precision of the clients' own effects, all others integrated out.

    Args:
        method: whose.
        dense: the root of the precision of the rest, the clients' own first, (..., R, R).
    """
    identity = torch.eye(dense.shape[-1])[:, : method.covariance.q].to(dense).expand(*dense.shape[:-1], -1)
    covariance = torch.cholesky_solve(identity, dense)[..., : method.covariance.q, :]
    return torch.linalg.cholesky_ex(torch.linalg.inv(covariance)).L
