"""Personal values that the server rebuilds for each client, as a convex combination of all clients'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Field, Form, not_negative, positive
from ...state import State
from .base import AggregationContext
from .simplex import combinations


@dataclass(frozen=True)
class OwnCombination:
    """Each client's value becomes a convex combination of all that were reported, with weights of its own.

        mu_j <- sum_a alpha_ja mu_a,    alpha_j as in :func:`~hierfl.inference.server.rules.simplex.combinations`

    The server sees every client's value and statistics by themselves, and not their sums; a client is sent its own
    combination (and what share of it is its own), and no other's. Values of those who have not reported take no part,
    and stay as they are. The shared value NAME (*shape) is the mean of the combinations: it bounds the size of what is
    sent.

    The weights are computed on the host, by a quadratic program for each client that has reported: 0.6 s a round for
    100 of them, and half a minute for 300 (one CPU core).

    Args:
        name: NAME.
        of: the personal value, of NAME's shape.
        share: a personal value (), for the client's own share in its combination.
        statistics: of each row, V (S,) and H (S, *statistic).
        statistic: the shape of H.
    """

    name: str
    of: str
    share: str
    statistics: Callable[[ClientChunk], tuple[Tensor, Tensor]]
    statistic: tuple[int, ...]
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """All fields are individual; "here" tells who has reported from zeros."""
        value = old[self.name]
        return {
            self.name: Field(tuple(value.shape), value.dtype, scaled=True, individual=True),
            "variance": Field((), value.dtype, not_negative, individual=True),
            "mean": Field(self.statistic, value.dtype, individual=True),
            "here": Field((), value.dtype, positive, individual=True),
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Each client's own value, V and H, which the server sees one by one; and a one."""
        variance, mean = self.statistics(chunk)
        value = chunk.values[self.of].squeeze(1)
        return {self.name: value, "variance": variance, "mean": mean, "here": torch.ones_like(variance)}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """The combinations, as replies; and their mean."""
        values = total[self.name]
        who = (total["here"] > 0).nonzero().flatten()
        if not len(who):
            return old
        weights = combinations(total["variance"][who], total["mean"][who]).to(values.device)
        combined = (weights @ values[who].flatten(1).double()).view(-1, *values.shape[1:]).to(values)
        context.replies[self.of] = torch.zeros_like(values).index_copy_(0, who, combined)
        shares = weights.diagonal().to(values)
        context.replies[self.share] = values.new_zeros(len(values)).index_copy_(0, who, shares)
        return {self.name: combined.mean(0)}
