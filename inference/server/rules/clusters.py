"""Several values in one, each the mean of the clients that chose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Form, row_count, values_form
from ...state import State
from .base import AggregationContext
from .weights import append_dims, server_step


@dataclass(frozen=True)
class ClusterMeans:
    """Several values in one, (C, *shape), each of which is the n_j-weighted mean of the copies that chose it.

    One that no client has chosen stays (IFCA; Ghosh et al., NeurIPS 2020, Alg. 1).

    Args:
        label: the personal value (1,) that says which slot is a row's, 0 ... C - 1.
        server_lr: as for :class:`~hierfl.inference.server.rules.means.SampleWeighted`.
    """

    label: str
    server_lr: float = 1.0
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The slots times their weights, none of which is below zero, and one of which is above."""
        ((_, value),) = old.items()
        weight = row_count(old, tuple(value.shape[:1]))
        return {**values_form(old, scaled=True, weight="weight"), "weight": weight}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """n_j theta_j and n_j in the row's own slot, nothing in the others."""
        (name,) = names
        copies = chunk.values[name].squeeze(1)  # (S, C, *shape)
        labels = torch.arange(copies.shape[1], device=copies.device)
        weight = (chunk.values[self.label].flatten(1) == labels).to(copies) * chunk.n[:, None]
        return {name: append_dims(weight, copies) * copies, "weight": weight}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide, slot by slot."""
        ((name, value),) = old.items()
        weight = append_dims(total["weight"], value)
        new = server_step(self.server_lr, value, total[name] / weight.clamp_min(1))
        return {name: torch.where(weight > 0, new, value)}
