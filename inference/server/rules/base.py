"""What an aggregation rule is: a message of which the server needs the sum, and an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from hierfl.rng import normals

from ...clients.chunk import ClientChunk
from ...messages.form import Form, values_form
from ...state import State


class AggregationRule(Protocol):
    """How some shared values are exchanged: a message of which the server needs only the sum, and the update.

    A rule with ``sends = False`` has no message: its values follow from others that the server has. One with
    ``comparable = False`` has messages that say nothing beside one another: no client is named by them.
    """

    @property
    def sends_gradients(self) -> bool:
        """Whether messages are gradients by the shared values, which then become rows."""
        ...

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """What each client's message holds, for shared values like ``old``.

        A rule may leave this method out: then a message holds finite tensors of the values' names, shapes and dtypes,
        and nothing else.
        """
        return values_form(old)

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """What each row sends, {key: (S, *shape)}; weights are already inside."""
        ...

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """New shared values from the sum of the valid messages, {name: (*shape)}."""
        ...


class Unsent:
    """A rule of which no client sends anything: a base class."""

    sends_gradients: ClassVar[bool] = False
    sends: ClassVar[bool] = False

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Nothing."""
        return {}

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Nothing."""
        return {}


def form_of(rule: AggregationRule, old: Mapping[str, Tensor]) -> Form:
    """The form that a rule declares, or the default where it declares none."""
    declared = getattr(rule, "form", None)
    return declared(old) if declared is not None else AggregationRule.form(rule, old)


@dataclass
class AggregationContext:
    """What a rule may know on the server beside the sum.

    Attributes:
        num_clients: J, how many there are in all.
        reported: |A|, how many valid messages were summed (a tensor, so that nothing leaves the device).
        round: from 1.
        prior_gradient: names -> gradient of log p(globals) at the current shared values.
        rule_state: what the rule keeps from round to round, checkpointed with the server.
        shared: all shared values before the update, those of other rules among them.
        seed: of the run.
        replies: where a rule puts what single clients are sent: personal values {name: (J, *shape)}, of which each
            client whose message was used gets its own row alone. The method must name them in
            :attr:`~hierfl.inference.method.base.Method.replies`.
    """

    num_clients: int
    reported: Tensor
    round: int
    prior_gradient: Callable[[Sequence[str]], State]
    rule_state: State = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    seed: int = 0
    replies: State = field(default_factory=dict)

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Standard normals of the server's own for a value, keyed by seed and round."""
        return normals(like.shape, self.seed, self.round, "server", name, dtype=like.dtype, device=like.device)
