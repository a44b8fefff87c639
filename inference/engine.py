"""The plate engine: all clients of a round as rows of one plate, in chunks, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.federation import Federation

from .method import Local, Method, State
from .server import Server


@dataclass(frozen=True)
class PlateEngine:
    """Runs the clients' part of a round.

    Args:
        method, federation: whose.
        chunk: rows in one plate. On a CPU ten fit the cache (measured: twice as fast as one, three times as fast as a
            hundred); on a GPU take as many as fit.
        seed: of all the clients' randomness.
    """

    method: Method
    federation: Federation
    chunk: int
    seed: int

    def round(
        self, number: int, server: Server, personal: State, copies: State, reporting: Sequence[int]
    ) -> tuple[State, State, Tensor]:
        """Every client's local steps, and the messages of those who report.

        Where training can change nothing but the message, only they train.

        Args:
            number: the round, from 1.
            server: gets the messages.
            personal: the clients' rows, {name: (J, *shape)}.
            copies: their copies of shared values, {name: (J, *shape)}.
            reporting: who sends.

        Returns:
            New personal state and copies, and (J,) True where a client's own computation failed: such a client
            keeps its previous state, and its message is dropped.
        """
        federation, speaks = self.federation, set(reporting)
        train = list(range(federation.clients)) if personal or copies else sorted(speaks)
        train.sort(key=lambda j: (-len(federation.train[j]), federation.ids[j]))
        new_personal = {k: v.clone() for k, v in personal.items()}
        new_copies = {k: v.clone() for k, v in copies.items()}
        failed = torch.zeros(federation.clients, dtype=torch.bool, device=federation.device)
        shared = server.shared
        steps = self.method.local()
        for first in range(0, len(train), self.chunk):
            rows = train[first : first + self.chunk]
            index = torch.tensor(rows, device=federation.device)
            start = {k: v[index].unsqueeze(1) for k, v in personal.items()}
            local = Local(self.method, federation, rows, number, self.seed, shared, start)
            for phase, step in enumerate(steps):
                local = step.run(local, phase)
            healthy = _finite(local)
            for name in new_personal:
                new_personal[name][index] = _keep(healthy, local.rows[name].squeeze(1), personal[name][index])
            for name in new_copies:
                if name in local.rows:
                    new_copies[name][index] = _keep(healthy, local.rows[name].squeeze(1), copies[name][index])
            failed[index] = ~healthy
            senders = [row for row, j in enumerate(rows) if j in speaks]
            if senders and server.rules:
                sending = local.take(senders)
                at = torch.tensor(senders, device=federation.device)
                server.receive(server.messages(sending), sending.clients, healthy[at])
        return new_personal, new_copies, failed


def _finite(local: Local) -> Tensor:
    """(S,): whether all of a row's values are finite."""
    healthy = torch.ones(len(local.clients), dtype=torch.bool, device=local.federation.device)
    for value in local.rows.values():
        healthy = healthy & value.flatten(1).isfinite().all(1)
    return healthy


def _keep(healthy: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(healthy.view(-1, *[1] * (new.dim() - 1)), new, old)
