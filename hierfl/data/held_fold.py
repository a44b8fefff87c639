"""A fold of every client's training rows that is kept from training for some rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..rng import permutations
from .federation import Federation
from .index_sets import IndexSets

#: one of so many of a client's rows is kept
ONE_OF = 3


@dataclass(frozen=True)
class HeldFold:
    """A federation without a fold of its training rows, and the fold.

    Attributes:
        rest: the federation without it.
        rows: indices of it, n_j // ONE_OF for each client: none of a client with fewer rows than that.
    """

    rest: Federation
    rows: IndexSets


def held_fold(federation: Federation) -> HeldFold:
    """The fold of a federation, drawn at random by the clients' names: the same in every round, wherever they are."""
    cached: Any = federation.__dict__.get("held_fold")
    if cached is None:
        sizes = federation.sizes()
        orders = permutations(federation.keys, sizes, [1] * len(sizes), "held fold").split(list(sizes))
        device = federation.indices("train").flat.device
        held_out, rest = list[torch.Tensor](), list[torch.Tensor]()
        for index, order in zip(federation.train, orders, strict=True):
            many, order = len(index) // ONE_OF, order.to(device)
            held_out.append(index[order[:many].sort().values])
            rest.append(index[order[many:].sort().values])
        cached = HeldFold(replace(federation, train=rest), IndexSets(held_out))
        federation.__dict__["held_fold"] = cached
    fold: HeldFold = cached
    return fold
