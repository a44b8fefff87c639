"""Means of what clients make of their values for the purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Form, row_count, values_form
from ...state import State
from .base import AggregationContext
from .weights import server_step, times_rows


@dataclass(frozen=True)
class SampleWeightedMeanOf:
    """The mean, weighted by how many examples clients have, of a function of what they have: sum n_j f_j / sum n_j.

    Args:
        of: from rows to f_j, (S, *shape), of the shared value's shape.
        server_lr: as for :class:`~hierfl.inference.server.rules.means.SampleWeighted`.
    """

    of: Callable[[ClientChunk], Tensor]
    server_lr: float = 1.0
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The value times a weight above zero."""
        return {**values_form(old, scaled=True, weight="weight"), "weight": row_count(old)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """(n_j f_j, n_j)."""
        (name,) = names
        return {name: times_rows(chunk.n, self.of(chunk)), "weight": chunk.n}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide."""
        ((name, value),) = old.items()
        return {name: server_step(self.server_lr, value, total[name] / total["weight"])}
