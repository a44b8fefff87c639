"""Means of what all clients' examples of each class have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Field, Form, beside, some_weight
from ...state import State
from .base import AggregationContext
from .weights import append_dims


@dataclass(frozen=True)
class ClassMeans:
    """The mean over all examples of each class, from the clients' sums of them and how many they have.

    The shared values are NAME (C, *shape), the means, and NAME.counts (C,), of how many examples each is: 0 before any
    has been reported. A class that no message has stays as it is.

    Args:
        name: NAME.
        sums: of each row, the sum over its examples of each class (S, C, *shape), and how many these are (S, C).
    """

    name: str
    sums: Callable[[ClientChunk], tuple[Tensor, Tensor]]
    sends_gradients: ClassVar[bool] = False

    @property
    def counts(self) -> str:
        """NAME.counts."""
        return f"{self.name}.counts"

    @property
    def growing(self) -> tuple[str, ...]:
        """The counts, which are as large as there are many examples."""
        return (self.counts,)

    @property
    def moving(self) -> tuple[str, ...]:
        """The means, by which it is measured how far a round has moved."""
        return (self.name,)

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Sums, which are means times counts; and counts, none below zero, and one of them above."""
        value = old[self.name]
        sums = Field(tuple(value.shape), value.dtype, scaled=True, weight=itemgetter(self.counts))
        return {self.name: sums, self.counts: beside(old, tuple(value.shape[:1]), some_weight)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Sums and counts."""
        sums, counts = self.sums(chunk)
        return {self.name: sums, self.counts: counts}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide, class by class."""
        value, counts = old[self.name], total[self.counts]
        present = counts > 0
        mean = total[self.name] / append_dims(counts.clamp_min(1), value)
        return {
            self.name: torch.where(append_dims(present, value), mean, value),
            self.counts: torch.where(present, counts, old[self.counts]),
        }
