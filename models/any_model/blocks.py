"""Clients and points of the globals of which log joints are evaluated at once: so few that numbers stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from hierfl.inference.clients.chunk import ClientChunk

from .steps import AtSites

if TYPE_CHECKING:
    from .plain import GaussianModel

#: numbers of a tensor of a log joint at once, and points of these at least, where clients are many
CELLS, POINTS = 2**18, 128
#: evaluations for which tracing a graph pays
MANY = 100


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
    at = AtSites.of(method, chunk)
    count, rows = len(at.guide.mean), at.clients.columns.shape[-1]
    pairs = max(1, CELLS // (rows + 2 * (method.q + points.shape[-1])))
    clients = min(count, max(1, pairs // POINTS))
    clients = -(-count // -(-count // clients))
    each = max(1, min(pairs // clients, inner * len(points)))
    evaluations = inner * -(-len(points) // each) * -(-count // clients)
    graphs = method.graphs if evaluations >= MANY else None
    at = replace(at, clients=replace(at.clients, graphs=graphs, at_once=each))
    parts = [(first, points[first : first + each]) for first in range(0, len(points), each)]
    for first in range(0, count, clients):
        start = min(first, count - clients)
        last = start + clients
        yield Block(at.some(start, last), chunk.part(start, last), first - start, parts)
