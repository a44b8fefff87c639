"""Values that are trained together, and what of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..objective.elbo import Terms
from .optimizers import MakeOptimizer

#: "sum" ascends the ELBO; "example" ascends ELBO / n_j, the mean log likelihood less KL / n_j
Per = Literal["sum", "example"]


@dataclass(frozen=True)
class Block:
    """Values that are trained in turn with others, on the same minibatches.

    Args:
        names, optimizer, terms, repeats: as for :class:`~hierfl.inference.local.svi.SVI`.
    """

    names: Sequence[str]
    optimizer: MakeOptimizer
    terms: Terms = "all"
    repeats: int = 1
