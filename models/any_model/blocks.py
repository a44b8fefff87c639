"""Clients and points of the globals whose log joints are evaluated at once: so few that they stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk

from .in_parts import pairs_at_once, parts
from .steps import AtSites

if TYPE_CHECKING:
    from .plain import GaussianModel

#: points at once, about, where clients are many
POINTS = 128
#: evaluations for which a graph pays
MIN_EVALUATIONS_FOR_GRAPH = 200


@dataclass(frozen=True)
class Block:
    """Some clients.

    Attributes:
        at, chunk: those clients.
        new: how many of the first have been in the block before: all blocks have the same size.
        points: of the globals, (M, p) at a time, with the number of the first.
    """

    at: AtSites
    chunk: ClientChunk
    new: int
    points: list[tuple[int, Tensor]]


def blocks(method: GaussianModel, chunk: ClientChunk, points: Tensor, inner: int) -> Iterator[Block]:
    """All clients, some at a time.

    Args:
        method: whose model.
        chunk: the clients.
        points: of the globals, (M, p).
        inner: draws of a client's latents at each.
    """
    at = AtSites.undrawn(method, chunk)
    pairs = pairs_at_once(at.clients, method.q + points.shape[-1])
    some = list(parts(at.clients, pairs // POINTS))
    points_at_once = max(1, min(pairs // max(1, some[0][1]), inner * len(points)))
    if inner * -(-len(points) // points_at_once) * len(some) >= MIN_EVALUATIONS_FOR_GRAPH:
        at = replace(at, clients=replace(at.clients, at_once=points_at_once))
    together = [(first, points[first : first + points_at_once]) for first in range(0, len(points), points_at_once)]
    for first, last, new in some:
        yield Block(at.some(first, last), chunk.part(first, last), new, together)
