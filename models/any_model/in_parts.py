"""The clients' log joint and its derivatives at draws of the guide, some clients at a time.

Numbers of so few clients stay in the processor's cache. Where parts are many, they run as a graph (:mod:`.graphs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from .evaluating import Clients
from .moments import Moments, moments

T = TypeVar("T")
#: numbers of a tensor of a log joint at once
CELLS = 2**18
#: parts for which a graph pays: to make it takes as long as some evaluations
MIN_PARTS_FOR_GRAPH = 4


def pairs_at_once(clients: Clients, numbers: int) -> int:
    """How many pairs of a draw and a client are evaluated at once.

    Args:
        clients: whose rows.
        numbers: of globals and a client's latents.
    """
    return max(1, CELLS // (clients.columns.shape[-1] + 2 * numbers))


def parts(clients: Clients, size: int) -> Iterator[tuple[int, int, int]]:
    """Clients as (first, last, new): the same number in all parts, of which those from ``new`` on were in none before.

    Args:
        clients: of whom.
        size: how many are together at most.
    """
    count = len(clients.columns)
    size = max(1, min(size, count))
    size = -(-count // -(-count // size)) if count else 1
    for first in range(0, count, size):
        start = min(first, count - size)
        yield start, start + size, first - start


def log_joints(clients: Clients, x: Tensor, v: Tensor) -> Tensor:
    """h_j at draws x (K, S, p) and v (K, S, q): (K, S)."""
    return torch.cat(over(clients, x, v, lambda some, x, v, new: some.log_joint(x, v)[:, new:]), 1)


def moments_of(clients: Clients, x: Tensor, v: Tensor) -> Moments:
    """Expected derivatives, see :func:`.moments.moments`."""

    def moments_of_part(some: Clients, x: Tensor, v: Tensor, new: int) -> Moments:
        expected = moments(some.log_joint, x, v)
        return Moments(*(getattr(expected, f.name)[new:] for f in fields(expected)))

    expected = over(clients, x, v, moments_of_part)
    return Moments(*(torch.cat([getattr(part, f.name) for part in expected]) for f in fields(Moments)))


def over(clients: Clients, x: Tensor, v: Tensor, function: Callable[[Clients, Tensor, Tensor, int], T]) -> list[T]:
    """``of(some, x, v, new)`` of some clients at a time, those from ``new`` on for the first time."""
    some = list(parts(clients, pairs_at_once(clients, x.shape[-1] + v.shape[-1]) // len(x)))
    if len(some) >= MIN_PARTS_FOR_GRAPH:
        clients = replace(clients, at_once=len(x))
    return [
        function(clients.some(first, last), x[:, first:last], v[:, first:last], new) for first, last, new in some
    ]  # fmt: skip
