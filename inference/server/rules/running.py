"""Values that follow others over the rounds: sums of changes, counts, running means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Form, not_negative, positive, values_form
from ...state import State
from .base import AggregationContext, Unsent


@dataclass(frozen=True)
class DeltaSum:
    """A shared mean of what all clients have; those who report send by how much theirs has changed.

    Changes are divided by J: the value stays the mean over all clients of what each has last reported (SCAFFOLD's
    control variate; Karimireddy et al., ICML 2020, Alg. 1).

    Args:
        change: of each row, (S, *shape).
    """

    change: Callable[[ClientChunk], Tensor]
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """A change, which is on the scale of the value or of one."""
        return values_form(old, scaled=True)

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """The change."""
        (name,) = names
        return {name: self.change(chunk)}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Add."""
        ((name, value),) = old.items()
        return {name: value + total[name] / context.num_clients}


@dataclass(frozen=True)
class RunningMean(Unsent):
    """The mean of another shared value over the rounds so far, from some round on; no client sends anything.

    Args:
        of: the other value, as it was before the round's update.
        burn: so many are left out, the first, as soon as there are others.
    """

    of: str
    burn: int = 0

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """A step towards the value."""
        ((name, value),) = old.items()
        num_rounds = context.rule_state.get("seen", value.new_zeros(())) + 1  # rounds that were not skipped
        context.rule_state["seen"] = num_rounds
        return {name: value + (context.shared[self.of] - value) / (num_rounds - self.burn).clamp_min(1)}


@dataclass(frozen=True)
class CountSum:
    """The sum of what the clients that report count of their data; a number that no message has stays.

    Args:
        counts: what each row tells, (S, *shape), nothing below zero.
    """

    counts: Callable[[ClientChunk], Tensor]
    growing: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Counts, none below zero."""
        return {name: replace(field, holds=not_negative) for name, field in values_form(old).items()}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """The counts."""
        (name,) = names
        return {name: self.counts(chunk)}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Returns the sum of the messages; where it is zero the old value."""
        ((name, value),) = old.items()
        return {name: torch.where(total[name] > 0, total[name].to(value), value)}


@dataclass(frozen=True)
class EstimatedTotal:
    """The sum over all clients of what each counts, estimated from those who report: their sum times J / |A|.

    Args:
        counts: of each row, (S, *shape), above zero.
    """

    counts: Callable[[ClientChunk], Tensor]
    growing: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Counts, all above zero."""
        return {name: replace(field, holds=positive) for name, field in values_form(old).items()}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """The counts."""
        (name,) = names
        return {name: self.counts(chunk)}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Scale."""
        return {name: total[name] * (context.num_clients / context.reported) for name in old}


@dataclass(frozen=True)
class Averaged(Unsent):
    """Other shared values averaged over rounds, with exponential weights; no client sends anything.

    A value is called PREFIX.X where X is the other's name. Of the first K rounds it is the plain mean.

    Args:
        prefix: PREFIX.
        rounds: K, how many rounds the average remembers; 1 follows the other values, a round later.
    """

    prefix: str
    rounds: int

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """A step towards the values, as they were before the round's update."""
        zero = torch.zeros((), dtype=torch.float64, device=next(iter(old.values())).device)
        num_rounds = context.rule_state.get("seen", zero) + 1
        context.rule_state["seen"] = num_rounds
        step = 1 / num_rounds.clamp(max=self.rounds)
        return {k: v + step.to(v) * (context.shared[k.removeprefix(f"{self.prefix}.")] - v) for k, v in old.items()}
