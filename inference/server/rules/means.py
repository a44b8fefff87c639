"""Means and sums of what clients send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.nn.layers.batch_norm import is_statistic

from ...clients.chunk import ClientChunk
from ...messages.form import Form, beside, row_count, values_form
from ...state import State
from .base import AggregationContext
from .weights import server_step, times_rows


@dataclass(frozen=True)
class SampleWeighted:
    """The mean of the clients' copies weighted by how many examples they have: theta = sum n_j theta_j / sum n_j.

    FedAvg's rule. It is no M-step of a network's weights, and claims nothing.

    Args:
        server_lr: how far the server goes from the old value towards the mean; 1 is the mean itself. Where few clients
            report, this averages over the rounds as well.
        momentum: beta of the server's heavy ball, v <- beta v + (mean - theta), theta <- theta + server_lr v (FedAvgM;
            Hsu, Qi and Brown, 2019); 0 for none. For lasting directions a round is 1 / (1 - beta) times as long.
            Statistics of batch norm have none: a variance would go below zero.
        rounds: the last round with momentum; 0 for all. Clients may hold their copies from then on.
    """

    server_lr: float = 1.0
    momentum: float = 0.0
    rounds: int = 0
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The values times a weight above zero."""
        return {**values_form(old, scaled=True, weight="weight"), "weight": row_count(old)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """(n_j theta_j, n_j)."""
        sent = {name: times_rows(chunk.n, chunk.values[name].squeeze(1)) for name in names}
        return {**sent, "weight": chunk.n}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide."""
        mean = {name: total[name] / total["weight"] for name in old}
        if self.momentum and (not self.rounds or context.round <= self.rounds):
            kept = context.rule_state
            for name, value in mean.items():
                if is_statistic(name):
                    continue
                v = value - old[name] + self.momentum * kept.get(f"{name}/velocity", torch.zeros_like(value))
                kept[f"{name}/velocity"], mean[name] = v, old[name] + v
        return {name: server_step(self.server_lr, old[name], mean[name]) for name in old}


@dataclass(frozen=True)
class UniformMean:
    """The plain mean over the clients that report, of their copies or of a personal value of the same shape.

    Args:
        of: the personal value; None for the copies.
        server_lr: how far the server goes from the old value towards the mean.
    """

    of: str | None = None
    server_lr: float = 1.0
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The values."""
        return values_form(old, scaled=True)

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """What each client has; the server counts how many have reported."""
        if self.of is not None:
            (name,) = names
            return {name: chunk.values[self.of].squeeze(1)}
        return {name: chunk.values[name].squeeze(1) for name in names}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide."""
        return {name: server_step(self.server_lr, old[name], total[name] / context.reported) for name in old}


@dataclass(frozen=True)
class PrecisionWeightedMean:
    """The mean of the clients' posterior means weighted by confidence: w = sum tau_j mu_j / sum tau_j.

    pFedVEM, Eq. 9: the maximiser of the participants' ELBO in w under a flat p(w), given their rho_j.

    Args:
        mean: the personal value mu_j, (d,).
        rho: the personal value rho_j = tau_j^(-1/2), (1,).
        server_lr: how far the server goes from the old w towards the maximiser; the paper's beta is 1 less this.
    """

    mean: str
    rho: str
    server_lr: float = 1.0
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The value times a confidence above zero."""
        return {**values_form(old, scaled=True, weight="tau"), "tau": beside(old)}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """(tau_j mu_j, tau_j)."""
        (name,) = names
        tau = chunk.values[self.rho].flatten(1).squeeze(1).pow(-2)
        return {name: times_rows(tau, chunk.values[self.mean].squeeze(1)), "tau": tau}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Divide."""
        (name,) = old
        return {name: server_step(self.server_lr, old[name], total[name] / total["tau"])}
