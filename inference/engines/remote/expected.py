"""What the answers of sites hold: known before any of them is asked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.federation import Federation
from hierfl.errors import UserError
from hierfl.metrics.pooling import client_sums, example_sums

from ...evaluation.fitted import Fitted
from ...method.base import Method
from ...options import Options
from ...server.exchange import Exchange
from ...server.receiver import Receiver
from ...server.robust.watch import collects
from ...state import State, StateForm
from ..base import Broadcast, Scores


def refuse_replies(method: Method | type[Method]) -> None:
    """Sites hear one broadcast, the same for all.

    Raises:
        UserError: for a method whose server has something to say to single clients.
    """
    if method.replies:
        raise UserError(
            f"{method.name or 'this method'}: the server makes each client's {method.replies[0]!r}, and sites hear one "
            "broadcast: it runs in a simulation alone (hierfl run)"
        )


@dataclass(frozen=True)
class Expected:
    """What a study's sites send, of whatever it is that they are asked.

    Attributes:
        method: the study's.
        federation: its outline, see :mod:`hierfl.data.outline`.
        options: the study's.
        shared: what the server begins with.
        initial: one client's initial values, {name: (*shape)}.
        exchange: what messages look like.
    """

    method: Method
    federation: Federation
    options: Options
    shared: State
    initial: State
    exchange: Exchange

    @property
    def message(self) -> StateForm:
        """The form of one client's message, {"group|key": ...}."""
        return {
            f"{name}|{key}": (field.shape, field.dtype)
            for name, group in self.exchange.sending.items()
            for key, field in group.pipeline.sent.items()
        }

    def receiver(self, shared: State, clients: int, device: torch.device, rows: Tensor | None) -> Receiver:
        """What checks a round's messages; see :class:`~hierfl.inference.server.receiver.Receiver`."""
        collect = collects(self.options, self.exchange, clients)
        ratio = self.options.max_message_ratio
        return Receiver(self.exchange, shared, clients, device, ratio, rows=rows, collect=collect)

    def no_scores(self, kinds: int) -> Scores:
        """Scores of no client, for so many kinds of prediction: those of one have this form."""
        task = self.federation.task
        everyone = example_sums([], task) if self.method.has_global_model else None
        return Scores([client_sums({"n": torch.zeros(0).numpy()}, task) for _ in range(kinds)], everyone)

    def fitted(self, broadcast: Broadcast) -> Fitted:
        """What is known of no client: sums over it have the form of all clients'."""
        copied = [k for group in self.method.local_copies for k in self.method.expand(group, self.shared)]
        copies = {k: self.shared[k] for k in copied}
        no_rows, nothing = (
            {k: v.new_zeros((0, *v.shape)) for k, v in values.items()} for values in (self.initial, copies)
        )
        shared = self.method.prediction_params(broadcast.shared)
        return Fitted(self.method, self.federation, shared, no_rows, nothing, self.initial, self.options.seed)

    def no_sums(self, broadcast: Broadcast, *, summary: bool, new: bool) -> dict[str, State]:
        """Sums over no client of what the report needs, and of what a new client begins with."""
        fitted = self.fitted(broadcast)
        sums = {"new": fitted.new_client_sums()} if new else {}
        return {**sums, "summary": self.method.summary_terms(fitted)} if summary else sums
