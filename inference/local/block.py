"""Values that are trained together, and what of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..objective.elbo import Terms
from .gradient_transforms import GradientTransform
from .optimizers import MakeOptimizer

#: "sum" ascends the ELBO; "example" ascends ELBO / n_j, the mean log likelihood less KL / n_j
Per = Literal["sum", "example"]


@dataclass(frozen=True)
class Block:
    """Values that are trained in turn with others, on the same minibatches.

    Args:
        names, optimizer, terms, repeats, transform: as for :class:`~hierfl.inference.local.svi.SVI`.
    """

    names: Sequence[str]
    optimizer: MakeOptimizer
    terms: Terms = "all"
    repeats: int = 1
    transform: GradientTransform | None = None

    @property
    def batches(self) -> int:
        """How many minibatches an iteration of it uses."""
        return 1 if self.transform is None else self.transform.batches

    @property
    def gradients(self) -> int:
        """How many gradients an iteration of it takes, on all of its minibatches."""
        return self.batches if self.transform is None else getattr(self.transform, "gradients", self.batches)

    @property
    def turns(self) -> int:
        """How many times it draws, each time again: at every step, on each of its minibatches."""
        return self.repeats * self.batches
