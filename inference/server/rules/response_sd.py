"""The standard deviation of a regression's response, of all clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import ClassVar

from torch import Tensor

from ...clients.chunk import ClientChunk
from ...clients.squared_residuals import mean_squared_residuals
from ...messages.form import Form, beside, not_negative, row_count, values_form
from ...state import State
from .base import AggregationContext

#: a learned standard deviation is no less, in units of the training responses' own
LEAST_SD = 1e-3


@dataclass(frozen=True)
class PooledResponseSd:
    """s^2 = sum_j n_j E_q (y - E[y | x, w_j])^2 / sum_j n_j: the M-step of a Gaussian response's variance.

    It is the maximiser in s of the participants' ELBO, in which s is in the likelihood alone. A client sends two
    numbers, of which the server needs the sums: its expected squared residuals, and how many examples it has.
    """

    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """A sum of squares, and the examples that it is over."""
        weight = itemgetter("weight")
        squares = {k: replace(beside(old, v.shape, not_negative), weight=weight) for k, v in values_form(old).items()}
        return {**squares, "weight": row_count(old)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """(n_j E_q (y - E[y | x, w_j])^2, n_j)."""
        (name,) = names
        return {name: chunk.n * mean_squared_residuals(chunk), "weight": chunk.n}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide."""
        ((name, _),) = old.items()
        return {name: (total[name] / total["weight"]).sqrt().clamp_min(LEAST_SD)}
