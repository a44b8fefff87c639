"""A draw of the server's value given the clients' draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Form, beside, values_form
from ...state import State
from .base import AggregationContext
from .weights import times_rows


@dataclass(frozen=True)
class GibbsDraw:
    """A draw of w given the clients' z_j ~ N(w, rho^2 I), under a flat prior: w ~ N(mean of z_j, rho^2 / |A|).

    DG-LMC's server (Plassier et al., ICML 2021, Alg. 1), with one rho for all clients; everyone should take part.

    Args:
        draws: the personal value that a chain has left, (chains, kept, *shape): the first chain's last draw is sent.
        rho: of the model.
    """

    draws: str
    rho: float
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The value times a precision above zero."""
        return {**values_form(old, scaled=True, weight="precision"), "precision": beside(old)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """z_j / rho^2 and 1 / rho^2."""
        (name,) = names
        z = chunk.values[self.draws][:, 0, 0, -1]
        precision = chunk.n.new_full((len(z),), self.rho**-2)
        return {name: times_rows(precision, z), "precision": precision}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide, and draw."""
        ((name, value),) = old.items()
        variance = 1 / total["precision"]
        return {name: total[name] * variance + variance.sqrt() * context.normal(name, value)}
