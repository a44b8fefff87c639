"""A round's messages one by one, or sums over groups of clients: what a robust rule compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.devices import send
from hierfl.shapes import by_row

from ..state import State


@dataclass(frozen=True)
class Singles:
    """Messages of a round, a row for each client, or for each group of clients of which only the sum is known.

    Attributes:
        members: whose messages each of the R rows is the sum of, by position.
        counts: how many messages are in each row, (R,), int64; 0 of a row that does not count, whose numbers are zero.
        has_message: (R,), False where nothing has come at all.
        messages: {group of shared values: {key: (R, *shape)}}, as they were received.
    """

    members: Sequence[Sequence[int]]
    counts: Tensor
    has_message: Tensor
    messages: Mapping[str, State]

    @property
    def single(self) -> bool:
        """Whether each row is one client's."""
        return all(len(row) == 1 for row in self.members)

    @property
    def valid(self) -> Tensor:
        """(R,), True where a row counts."""
        return self.counts > 0

    @classmethod
    def of_clients(
        cls, clients: Sequence[int], valid: Tensor, messages: Mapping[str, State], healthy: Tensor | None = None
    ) -> Singles:
        """Messages of single clients, as they were received.

        Args:
            clients: whose, R of them.
            valid: (R,), True where a message counts.
            messages: {group: {key: (R, *shape)}}; numbers of rows that do not count are set to zero.
            healthy: (R,), False where the client itself says that it has no message; None for all well.
        """
        kept = {group: {k: valid_rows(v, valid) for k, v in message.items()} for group, message in messages.items()}
        return cls([[j] for j in clients], valid.long(), torch.ones_like(valid) if healthy is None else healthy, kept)

    def of_all(self, clients: int, reported: Iterable[int] = ()) -> Singles:
        """Messages with a row for each of J clients, in their order; a second message of one client is left out.

        Args:
            clients: J.
            reported: who has sent something beside these messages, which could not be read.
        """
        first = {row[0]: position for position, row in reversed(list(enumerate(self.members)))}
        present = [j for j in range(clients) if j in first]
        at = send([first[j] for j in present], self.counts.device, torch.long)
        to = send(present, self.counts.device, torch.long)

        def placed(value: Tensor) -> Tensor:
            return by_row(value, lambda v: v.new_zeros((clients, *v.shape[1:])).index_copy_(0, to, v[at]))

        messages, come, counts = self.messages, self.has_message, self.counts
        if [row[0] for row in self.members] != list(range(clients)):
            messages = {group: {k: placed(v) for k, v in message.items()} for group, message in messages.items()}
            come, counts = placed(come), placed(counts)
        if more := sorted(reported):
            come = come.index_fill(0, send(more, come.device, torch.long), True)
        return Singles([[j] for j in range(clients)], counts, come, messages)

    def __add__(self, other: Singles) -> Singles:
        """The rows of both."""
        messages = {
            group: {k: torch.cat([v, other.messages[group][k]]) for k, v in message.items()}
            for group, message in self.messages.items()
        }
        counts, reported = (
            torch.cat(pair) for pair in ((self.counts, other.counts), (self.has_message, other.has_message))
        )
        return Singles([*self.members, *other.members], counts, reported, messages)


def valid_rows(value: Tensor, valid: Tensor) -> Tensor:
    """(R, *shape), zero in rows that do not count.

    Args:
        value: (R, *shape).
        valid: (R,), True where a row counts.
    """
    if valid.device.type == "cpu" and bool(valid.all()):  # asking a GPU would stall it
        return value
    return by_row(value, lambda v: torch.where(valid.view(-1, *[1] * (v.dim() - 1)), v, 0))
