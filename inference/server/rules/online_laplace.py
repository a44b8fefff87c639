"""The mode of the product of the clients' Laplace approximations, and its precision, round after round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Field, Form, positive, row_count
from ...state import State
from .base import AggregationContext
from .weights import server_step, times_rows

#: what the group has beside the mean
EXTRA_VALUES = ("precision", "rounds", "examples")


@dataclass(frozen=True)
class OnlineLaplace:
    """Diagonal Gaussians N(theta_j, Lambda_j^-1) of one value, multiplied with weights a_j = n_j / sum n_j.

    Lambda_j = Lambda + F_j, with what was broadcast; then Lambda <- sum a_j Lambda_j, w <- sum a_j Lambda_j theta_j /
    Lambda (FOLA; Liu et al., 2021). The group w has ``w.mean`` (d,), of which each row has a copy theta_j; and beside
    it ``w.precision``, Lambda (d,), above zero from the beginning; ``w.rounds``, how many F are in it, ();
    ``w.examples``, how many examples all clients have, (): where some report, J times their mean, averaged over the
    rounds.

    Args:
        group: w, the group's name.
        information: F_j of the rows at their copies, (S, d): the mean over examples, nothing below zero.
        server_lr: how far the server goes from the old mean towards the mode.
    """

    group: str
    information: Callable[[ClientChunk], Tensor]
    server_lr: float = 1.0
    sends_gradients: ClassVar[bool] = False

    @property
    def moving(self) -> Sequence[str]:
        """The mean."""
        return (f"{self.group}.mean",)

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """n_j Lambda_j above zero, and the mean times it, number by number."""
        mean, precision = (f"{self.group}.{k}" for k in ("mean", "precision"))
        shape, dtype = tuple(old[mean].shape), old[mean].dtype
        return {
            mean: Field(shape, dtype, scaled=True, weight=itemgetter(precision)),
            precision: Field(shape, dtype, positive, weight=itemgetter("weight")),
            "weight": row_count(old),
        }

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """n_j Lambda_j theta_j, n_j Lambda_j and n_j."""
        mean, precision = (f"{self.group}.{k}" for k in ("mean", "precision"))
        sent = times_rows(chunk.n, chunk.shared[precision] + self.information(chunk))
        return {mean: sent * chunk.values[mean].squeeze(1), precision: sent, "weight": chunk.n}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide."""
        mean, precision, rounds, examples = (f"{self.group}.{k}" for k in ("mean", *EXTRA_VALUES))
        num_rounds, everyone = old[rounds] + 1, total["weight"] * (context.num_clients / context.reported)
        return {
            mean: server_step(self.server_lr, old[mean], total[mean] / total[precision]),
            precision: total[precision] / total["weight"],
            rounds: num_rounds,
            examples: old[examples] + (everyone - old[examples]) / num_rounds,
        }


def beginning(group: str, mean: Tensor, epsilon: float) -> State:
    """The group's values as a fit begins: a mean (d,), and Lambda = epsilon for each of its numbers."""
    none = mean.new_zeros(())
    return {
        f"{group}.mean": mean, f"{group}.precision": torch.full_like(mean, epsilon), f"{group}.rounds": none,
        f"{group}.examples": none.clone(),
    }  # fmt: skip


def posterior_scale(precision: Tensor, rounds: Tensor, examples: Tensor, times: float, more: float) -> Tensor:
    """Standard deviations (d,) of N(w, P^-1), P = times n Lambda / r + more: every example counts ``times`` times.

    Args:
        precision, rounds, examples: Lambda (d,), r and n of a group of :class:`OnlineLaplace`.
        times: see above.
        more: precision beside the data's.
    """
    return (times * examples * precision / rounds.clamp_min(1) + more).rsqrt()
