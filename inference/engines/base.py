"""The interface of all engines, which compute for clients wherever these are.

An engine is asked for sums: of what a round's reporters send, of how the clients' models predict. What is a client's
own stays behind it. Every request comes with a broadcast, which also says what of the last round counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.metrics.pooling import MetricSums

from ..calibration.answer import Answer
from ..calibration.question import Question
from ..evaluation.fitted import Fitted
from ..messages.singles import Singles
from ..messages.sums import Sums
from ..method.schedule import Plan
from ..server.exchange import Exchange
from ..state import State, StateForm


class ClientStatus(IntEnum):
    """What a client did in a round."""

    #: nothing was wanted of it
    ABSENT = 0
    #: its message was used
    REPORTED = 1
    #: its message was not: not finite, or of the wrong form
    REJECTED = 2
    #: it trained for itself alone, and that diverged: it keeps its previous values
    DIVERGED = 3
    #: with masks: it has answered, and whether its message is in the sum it alone knows
    UNKNOWN = 4


@dataclass(frozen=True)
class Broadcast:
    """What the server says to all clients.

    Attributes:
        round: the round that begins; of other requests, the one that has ended.
        shared: {name: (*shape)}.
        used: (J,), True where the message of the round before was used; None where nothing is left to say of it.
        final: whether clients are asked for what the final steps make of their values.
        replies: personal values as the server has made them, {name: (J, *shape)}: a client whose message of the round
            before was used takes its own row, and is sent no other. The first broadcast after a round says it, and all
            until the next round say the same.
    """

    round: int
    shared: State
    used: Tensor | None = None
    final: bool = False
    replies: State = field(default_factory=dict)


@dataclass(frozen=True)
class Reports:
    """What a round has brought.

    Attributes:
        sums: of the messages.
        status: (J,), uint8, :class:`ClientStatus`.
        diverged: (J,), True where a client's own computation failed, whether it was to report or not; with masks at
            sites nowhere, and the sums count them.
        singles: the messages one by one, a row for each of J clients (or group of clients) in their order; None where
            they are not seen, or not wanted.
        refused: messages that were not used, of clients that are not known.
    """

    sums: Sums
    status: Tensor
    diverged: Tensor
    singles: Singles | None = None
    refused: int = 0

    @property
    def used(self) -> Tensor:
        """(J,): whose messages are in the sums, or may be: with masks a client knows whether its own is."""
        return (self.status == ClientStatus.REPORTED) | (self.status == ClientStatus.UNKNOWN)


@dataclass(frozen=True)
class Scores:
    """How the models predict on one split. Scores of different clients add up.

    Attributes:
        personal: for each kind of prediction (at the posterior mean; averaged over draws) sums over the clients, see
            :func:`~hierfl.metrics.pooling.client_sums`.
        global_model: sums over the examples, see :func:`~hierfl.metrics.pooling.example_sums`; None without one.
        clients: for each kind each client's own, {metric: (J, ...)}; None where these stay where they are.
        masked: whether no one but a client knows its own: metrics and rounds are judged by sums alone.
    """

    personal: Sequence[MetricSums]
    global_model: MetricSums | None = None
    clients: list[dict[str, np.ndarray]] | None = None
    masked: bool = False

    def __add__(self, other: Scores) -> Scores:
        """Sums of both; what each client has is left behind."""
        personal = [_added(first, two) for first, two in zip(self.personal, other.personal, strict=True)]
        if self.global_model is None or other.global_model is None:
            return Scores(personal)
        return Scores(personal, _added(self.global_model, other.global_model))


def _added(first: MetricSums, two: MetricSums) -> MetricSums:
    return {name: value + two[name] for name, value in first.items()}


class Engine(Protocol):
    """The clients of a fit, wherever they are."""

    @property
    def ids(self) -> Sequence[str]:
        """The clients' names, J of them."""
        ...

    @property
    def task(self) -> str:
        """The task of the clients' data: "classification" or "regression"."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of what the clients send."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this process writes, reports and shows progress: of several that run one fit, the first."""
        ...

    @property
    def every_round(self) -> bool:
        """Whether a checkpoint is kept after each round: clients elsewhere can go back by no more than one."""
        ...

    def agree(self, wish: bool) -> bool:
        """What the process that leads wishes: where it matters that all of them do the same."""
        ...

    def begin(self, shared: State, initial: State, exchange: Exchange) -> None:
        """Gives every client its initial values, and checks that the method's parts fit together.

        Args:
            shared: what the server begins with.
            initial: one client's initial values, {name: (*shape)}.
            exchange: what messages look like.

        Raises:
            UserError: for a method whose parts do not.
        """

    def template(self) -> Batch:
        """One row without data: enough for a model to be run."""
        ...

    def has_data(self, split: str) -> bool:
        """Whether any client has examples in a split."""
        ...

    def round(self, broadcast: Broadcast, plan: Plan) -> Reports:
        """The local steps of those who train, and the sum of what those who report send."""
        ...

    def scores(self, broadcast: Broadcast, split: str, draws: Sequence[int]) -> Scores:
        """How the clients' models predict, for each number of draws (0: at the posterior mean), and the global one."""
        ...

    def calibration(self, broadcast: Broadcast, question: Question) -> Answer:
        """What a fit is calibrated with, after its last round: sums over all clients."""
        ...

    def client_summary(self, broadcast: Broadcast) -> State:
        """What the method has of each client, (J,) each; empty where that stays there."""
        ...

    def fitted(self, broadcast: Broadcast) -> Fitted:
        """What the clients that are here predict with."""
        ...

    def result(self, broadcast: Broadcast, calibrated: State | None = None) -> Fitted:
        """What is kept of the fit after the last round: of all clients, where their values may be brought together.

        Args:
            broadcast: after the last round.
            calibrated: what a calibration has found, for clients that predict on their own.
        """
        ...

    def state(self, broadcast: Broadcast) -> State:
        """Its part of a checkpoint, for the process that leads; from the others it may be empty."""
        ...

    def form(self) -> StateForm:
        """The form of what :meth:`state` gives."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what :meth:`state` gave."""

    def digest(self) -> str:
        """A fingerprint of the clients' data and split."""
        ...
