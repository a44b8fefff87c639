"""Rounds without clients: the product's exchange, receiver and server, and messages that a test makes or changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from hierfl import Federation
from hierfl.inference import Method
from hierfl.inference.clients.chunk import ClientChunk
from hierfl.inference.engines.base import ClientStatus
from hierfl.inference.messages.bits import pack_bits, to_bytes
from hierfl.inference.messages.codec import Quantise
from hierfl.inference.messages.form import Form
from hierfl.inference.messages.limits import MAX_MESSAGE_RATIO
from hierfl.inference.run.fit import Fit
from hierfl.inference.server.exchange import Exchange
from hierfl.inference.server.receiver import Receiver
from hierfl.inference.server.rules.base import AggregationRule
from hierfl.inference.server.server import Server
from hierfl.inference.state import State

Messages = dict[str, dict[str, Any]]
#: from messages and whose they are to what arrives in their place
Change = Callable[[Messages, Sequence[int]], Messages]


class Rounds:
    """A server with what it receives: ``begin``, messages, ``receive``, ``end``, and again.

    Args:
        method, federation: whose messages.
        shared: what the server begins with.
        personal: one client's initial values.
        quorum, seed, max_message_ratio: as for a fit.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        shared: State,
        personal: State,
        quorum: int = 1,
        seed: int = 0,
        max_message_ratio: float = MAX_MESSAGE_RATIO,
    ) -> None:
        self.exchange = Exchange(method.exchange(), method.pipeline(), method.expand, shared)
        template, clients = federation.template(), federation.clients
        self.server = Server(method, self.exchange, template, personal, clients, quorum, seed)
        self.state = self.server.begin(shared)
        self.max_message_ratio, self.device, self.clients = max_message_ratio, federation.device, clients
        self.receiver = self._receiver()
        #: of the rounds before
        self._rejected = torch.zeros(clients, dtype=torch.int64, device=self.device)

    def _receiver(self) -> Receiver:
        return Receiver(self.exchange, self.state.shared, self.clients, self.device, self.max_message_ratio)

    def begin(self) -> None:
        """The next round: nothing has been received."""
        self._rejected = self.rejected
        self.receiver = self._receiver()

    def messages(self, chunk: ClientChunk) -> Messages:
        """What clients send."""
        return self.exchange.messages(chunk)

    def receive(self, messages: Any, clients: Sequence[Any], healthy: Tensor | None = None) -> Tensor:
        """(S,), True where a message was used."""
        return self.receiver.add(messages, clients, healthy)

    def end(self) -> None:
        """The server's update."""
        self.state = self.server(self.state, self.receiver.sums)

    @property
    def shared(self) -> State:
        """What is broadcast."""
        return self.state.shared

    @property
    def skipped(self) -> int:
        """Rounds that have changed nothing."""
        return int(self.state.skipped)

    @property
    def rejected(self) -> Tensor:
        """(J,), how many messages of each client were rejected so far."""
        return self._rejected + self.receiver.rejected

    @property
    def rules(self) -> dict[str, AggregationRule]:
        """By group."""
        return {name: group.rule for name, group in self.exchange.groups.items()}

    @property
    def forms(self) -> dict[str, Form]:
        """What must hold of the numbers of each group's message, once it is received."""
        return {name: group.form for name, group in self.exchange.sending.items()}

    def codec(self, group: str) -> Quantise | None:
        """What the shared values' part of a group's message is compressed by, if it is."""
        stages = self.exchange.groups[group].pipeline.stages
        return next((stage.compressor for stage in stages), None)  # type: ignore[attr-defined]

    def filled(self, group: str, key: str, value: Tensor, number: float) -> Tensor:
        """A message's tensor in which every number (of bytes, every one that they decode to) is another."""
        if value.dtype is not torch.uint8:
            return torch.full_like(value, number)
        field, codec = self.forms[group][key], self.codec(group)
        assert isinstance(codec, Quantise)
        norm = torch.full((len(value), 1), number, dtype=field.dtype)
        highest = torch.full((len(value), field.numel), 2 * codec.levels)
        return torch.cat([to_bytes(norm), pack_bits(highest, codec.bits)], 1)

    def kept(self) -> State:
        """Shared values and what rules remember, by name."""
        remembered = self.state.rule_state.items()
        return {**self.shared, **{f"{group}/{k}": v for group, memory in remembered for k, v in memory.items()}}


@contextmanager
def intercepted(change: Change) -> Iterator[None]:
    """Messages pass a test's hands between the clients and where they are received."""
    add = Receiver.add

    def changed(
        receiver: Receiver, messages: Mapping[str, State], clients: Sequence[int], healthy: Tensor | None = None
    ) -> Tensor:
        return add(receiver, change(dict(messages), clients), clients, healthy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Receiver, "add", changed)
        yield


def rejections(fit: Fit) -> list[int]:
    """How many messages of each client were rejected in a fit so far."""
    return (torch.stack(fit.journal.status) == ClientStatus.REJECTED).sum(0).tolist()


def with_rule(exchange: Exchange, group: str, rule: Any) -> None:
    """Another rule for a group, whose messages stay what they were."""
    exchange.groups[group] = dataclasses.replace(exchange.groups[group], rule=rule)
