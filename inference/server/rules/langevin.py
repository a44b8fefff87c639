"""Langevin steps of the server's value, along the clients' compressed gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hierfl.nn.likelihoods import RESPONSE_SD

from ...clients.chunk import ClientChunk
from ...messages.form import Form, values_form
from ...state import State
from .base import AggregationContext


@dataclass(frozen=True)
class LangevinStep:
    """w' = w + gamma (m + (J / |A|) sum over A of q_j + grad log p(w)) + sqrt(2 gamma T) xi, xi ~ N(0, I).

    q_j is what a client's gradient g_j of its log likelihood has more than its memory m_j, compressed without bias, and
    m the sum of all clients' memories, of which the server needs no single one: m' = m + a sum over A of q_j, as each
    of A does with its own (:class:`~hierfl.inference.local.compressed_memory.CompressedMemory`). So the sum over
    clients is estimated without bias (QLSD; Vono et al., AISTATS 2022, Alg. 2), and once memories have learned the
    gradients neither compression nor absence adds noise (DIANA; Mishchenko et al., 2019): of gradients of all data,
    where w hardly moves. What a minibatch's differ from memory, and what a step of w changes, is compressed and, where
    some are absent, multiplied all the same.

    Args:
        change: the rows' value that is sent, (d,): g_j - m_j.
        step_size: gamma.
        rate: a, of the memories; 0 for none.
        temperature: T; 0 is gradient ascent.
    """

    change: str
    step_size: float
    rate: float = 0.0
    temperature: float = 1.0
    sends_gradients: ClassVar[bool] = True

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Gradients, which have no scale of their own."""
        return values_form(old)

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """g_j - m_j, before it is compressed."""
        (name,) = names
        return {name: chunk.values[self.change].squeeze(1)}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """A step, and the memory of all."""
        ((name, value),) = old.items()
        memory = context.rule_state.get("memory", torch.zeros_like(value))
        # The likelihood's curvature is in units of the inverse of a learned variance.
        sd = context.shared.get(RESPONSE_SD)
        gamma = self.step_size if sd is None else self.step_size * sd.square()
        slope = memory + total[name] * (context.num_clients / context.reported) + context.prior_gradient([name])[name]
        new = value + gamma * slope
        if self.temperature:
            spread = math.sqrt(2 * self.step_size * self.temperature)
            new = new + (spread if sd is None else spread * sd) * context.normal(name, value)
        context.rule_state["memory"] = memory + self.rate * total[name]
        return {name: new}
