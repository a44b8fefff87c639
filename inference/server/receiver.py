"""The receiver of single messages: each is checked, and the valid ones are added up."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hierfl.devices import send
from hierfl.shapes import by_row

from ..messages.fixed_point import FixedPoint
from ..messages.form import LONGEST, Field, Form, everywhere, largest, listed, malformed
from ..messages.opened import clamped
from ..messages.singles import Singles, valid_rows
from ..messages.sums import Sums
from ..state import State
from .exchange import Exchange

log = logging.getLogger("hierfl")
#: of a row: how far a number of rows may be off, which are whole numbers
ROW_TOLERANCE = 0.5


class Receiver:
    """Receives the messages of one round.

    A message is valid that has the form its rules declare (:class:`~hierfl.inference.messages.form.Field`), is its
    client's first in the round, and holds finite numbers of no more than :meth:`ceiling` in size. Any other counts as
    non-participation: it is rejected, and never averaged in.

    What this is not: a defence against a client that sends a plausible lie, such as a wrong n_j or a gradient of the
    wrong sign.

    Args:
        exchange: what a message looks like.
        shared: as broadcast.
        clients: J.
        device: of the messages.
        max_message_ratio: how far a client's value may go beyond the broadcast one; see
            :class:`~hierfl.inference.options.Options`.
        everyone: how many clients' messages are added up in all, where these are some of them.
        rows: the fewest and the most training rows that each client may declare, (2, J); None for no such bounds.
        collect: whether the messages are kept one by one as well, J of them.
        fixed: whether they are added up in fixed point: then totals are digits, see
            :mod:`~hierfl.inference.messages.opened`.

    Attributes:
        sums: of the valid messages so far.
        singles: the messages of clients that exist, one by one, if they are collected and there are any.
        rejected: (J,), int64, how many messages of each client were rejected.
        unknown: messages of clients that do not exist.
    """

    def __init__(
        self,
        exchange: Exchange,
        shared: State,
        clients: int,
        device: torch.device,
        max_message_ratio: float,
        everyone: int = 0,
        *,
        rows: Tensor | None = None,
        collect: bool = False,
        fixed: bool = False,
    ) -> None:
        self.everyone, self.rows, self.collect, self.fixed = everyone or clients, rows, collect, fixed
        self.singles: Singles | None = None
        self.exchange, self.clients, self.device, self.max_message_ratio = exchange, clients, device, max_message_ratio
        self.sums = Sums.nothing(device)
        self.rejected = torch.zeros(clients, dtype=torch.int64, device=device)
        self.unknown = 0
        self._senders: set[int] = set()
        self._forms: dict[str, Form] = {name: group.form for name, group in exchange.sending.items()}
        self._scale: State = {}
        if max_message_ratio:
            scaled = {key for form in self._forms.values() for key, field in form.items() if field.scaled}
            self._scale = {key: shared[key].abs().amax().clamp_min(1) for key in scaled if shared[key].numel()}

    def ceiling(self, dtype: torch.dtype) -> float:
        """The largest number that a message may hold: then neither sums overflow nor, scaled to J, their squares."""
        return math.sqrt(torch.finfo(dtype).max) / self.everyone

    @torch.no_grad()
    def add(self, messages: Mapping[str, State], clients: Sequence[int], healthy: Tensor | None = None) -> Tensor:
        """Checks messages and adds the valid ones to the sums.

        Args:
            messages: {group: {key: (S, *shape)}}, one row per client, as sent.
            clients: whose they are. Rows of clients that do not exist, and all but the first of a client in a round,
                are rejected. A message that cannot be read is no client's first.
            healthy: (S,), False where the client itself reports that its computation failed; None for all well.

        Returns:
            (S,), True where the message was used.
        """
        device, rows = self.device, len(clients)
        exist = self._existing(clients)
        index = [j if exists else 0 for j, exists in zip(clients, exist, strict=True)]
        problem = self._unreadable(messages, rows)
        if problem:
            log.warning("rejected the message of client%s %s: %s", "s" * (rows > 1), list(clients), problem)
        if problem or not rows:
            valid = torch.zeros(rows, dtype=torch.bool, device=device)
        else:
            groups = self.exchange.sending
            received = {name: groups[name].pipeline.receive(message) for name, message in messages.items()}
            if self.fixed:
                received = {name: self.clamped(name, message) for name, message in received.items()}
            valid = self._first(clients, exist)
            if healthy is not None:
                valid = valid & healthy
            for name, message in received.items():
                valid = valid & self._sound(name, message, index)
            if self.collect:
                self._keep(received, clients, exist, valid, healthy)
            totals = {
                name: {key: self._total(self._forms[name][key], value, valid, index) for key, value in message.items()}
                for name, message in received.items()
            }
            failed = torch.zeros_like(valid) if healthy is None else ~healthy
            self.sums = self.sums + Sums(valid.sum(), failed.sum(), totals, rows * self.exchange.bytes)
        lost = ~valid if all(exist) else ~valid & send(exist, device, torch.bool)
        self.rejected.index_add_(0, send(index, device, torch.long), lost.long())
        return valid

    def _keep(
        self, received: Mapping[str, State], clients: Sequence[int], exist: Sequence[bool], valid: Tensor,
        healthy: Tensor | None,
    ) -> None:  # fmt: skip
        """Collects messages of clients that exist."""
        if not all(exist):
            at = [row for row, exists in enumerate(exist) if exists]
            position = send(at, self.device, torch.long)
            received = {name: {k: v[position] for k, v in message.items()} for name, message in received.items()}
            clients, valid = [clients[row] for row in at], valid[position]
            healthy = None if healthy is None else healthy[position]
        singles = Singles.of_clients(clients, valid, received, healthy)
        self.singles = singles if self.singles is None else self.singles + singles

    def _total(self, field: Field, value: Tensor, valid: Tensor, index: Sequence[int]) -> Tensor:
        """The sum of the valid rows of a value (S, *shape); of an individual field they are put in their positions.

        Those of clients that do not exist, which are not valid, have any position.
        """
        kept = valid_rows(value, valid)
        if self.fixed:
            return FixedPoint.for_dtype(field.dtype).encode(kept, self.everyone).sum(1).to(self.device)
        if not field.individual:
            return by_row(kept, lambda v: v.sum(0, keepdim=True))[0].contiguous()
        places = kept.new_zeros((self.clients, *field.shape))
        return places.index_add_(0, send(index, self.device, torch.long), kept)

    def clamped(self, group: str, message: State) -> State:
        """What fixed point can hold of a group's messages."""
        return {key: clamped(value, self._forms[group][key], self.everyone) for key, value in message.items()}

    def _existing(self, clients: Sequence[int]) -> list[bool]:
        """Which of these clients there are; counts the others."""
        exist = [isinstance(j, int) and not isinstance(j, bool) and 0 <= j < self.clients for j in clients]
        if not all(exist):
            strangers = [j for j, exists in zip(clients, exist, strict=True) if not exists]
            log.warning("rejected messages of clients that do not exist: %s", str(strangers)[:LONGEST])
            self.unknown += len(strangers)
        return exist

    def _first(self, clients: Sequence[int], exist: Sequence[bool]) -> Tensor:
        """(S,), True where a row is its client's first message in this round, which it then has sent."""
        first = []
        for j, exists in zip(clients, exist, strict=True):
            first.append(exists and j not in self._senders)
            if exists:
                self._senders.add(j)
        if all(first):
            return torch.ones(len(first), dtype=torch.bool, device=self.device)
        again = [j for j, exists, new in zip(clients, exist, first, strict=True) if exists and not new]
        if again:
            log.warning("rejected messages of clients that had sent one in this round: %s", str(again)[:LONGEST])
        return send(first, self.device, torch.bool)

    def _unreadable(self, messages: Mapping[str, State], rows: int) -> str:
        """What is wrong with the form of these messages, or nothing."""
        groups = self.exchange.sending
        if not isinstance(messages, Mapping) or set(messages) != set(groups):
            return f"it names {listed(messages)}, expected {sorted(groups)}"
        for name, message in messages.items():
            if not isinstance(message, Mapping):
                return f"that of {name!r} is no mapping"
            problem = malformed(groups[name].pipeline.sent, message, rows, self.device)
            if problem:
                return problem
        return ""

    def _sound(self, group: str, message: State, index: Sequence[int]) -> Tensor:
        """(S,), True where the numbers are what the group's rule declares."""
        valid = torch.ones((), dtype=torch.bool, device=self.device)
        for key, field in self._forms[group].items():
            value = message[key]
            if value.numel():
                valid = valid & self._fits(key, value, field, message)
            if field.rows is not None and self.rows is not None:
                least, most = self.rows[:, send(index, self.device, torch.long)]
                declared = field.rows(value).to(most)
                valid = valid & (declared > least - ROW_TOLERANCE) & (declared < most + ROW_TOLERANCE)
        return valid

    def _fits(self, key: str, value: Tensor, field: Field, message: State) -> Tensor:
        """(S,), True where the numbers under one key are finite, not too large, and what else must hold."""
        size = largest(value, 1)  # not a number where one of them is not, and so below nothing
        fits = size <= self.ceiling(value.dtype)
        if self.fixed and not field.impossible:
            fits = fits & (size <= FixedPoint.for_dtype(value.dtype).largest(self.everyone))
        if field.holds is not None:
            fits = fits & everywhere(field.holds(value))
        if field.agrees is not None:
            fits = fits & everywhere(field.agrees(message))
        if not (field.scaled and self.max_message_ratio):
            return fits
        limit = self.max_message_ratio * self._scale[key]
        if field.value is not None:
            return fits & (largest(field.value(message), 1) <= limit)
        if field.weight is None:
            return fits & (size <= limit)
        weight = field.weight(message)
        return fits & everywhere((size if weight.dim() == 1 else largest(value, weight.dim())) <= limit * weight)
