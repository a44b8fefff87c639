"""The plate engine: all clients of a round as rows of one plate, in chunks, on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.federation import Federation

from .method import Local, Method, State
from .server import Server


@dataclass(frozen=True)
class PlateEngine:
    """Runs the clients' part of a round.

    Args:
        method, federation: whose.
        chunk: rows in one plate; see :func:`hierfl.inference.options.suitable_chunk`.
        seed: of all the clients' randomness.
    """

    method: Method
    federation: Federation
    chunk: int
    seed: int

    def round(
        self,
        number: int,
        server: Server,
        personal: State,
        copies: State,
        reporting: Sequence[int],
        *,
        rest: bool = False,
    ) -> tuple[State, State, Tensor]:
        """Every client's local steps, and the messages of those who report.

        Where training can change nothing but the message, only they train.

        Args:
            number: the round, from 1.
            server: gets the messages.
            personal: the clients' rows, {name: (J, *shape)}.
            copies: their copies of shared values, {name: (J, *shape)}.
            reporting: who sends.
            rest: the others do not train, and keep their state.

        Returns:
            New personal state and copies, and (J,) True where a client's own computation failed: such a client
            keeps its previous state, and its message is dropped.
        """
        federation, speaks = self.federation, set(reporting)
        everyone = bool(personal or copies) and not rest
        train = list(range(federation.clients)) if everyone else sorted(speaks)
        train.sort(key=lambda j: (-len(federation.train[j]), federation.ids[j]))
        fresh = torch.empty_like if everyone else torch.clone  # (every row is written where all train)
        new_personal = {k: fresh(v) for k, v in personal.items()}
        new_copies = {k: fresh(v) for k, v in copies.items()}
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
            for new, old in ((new_personal, personal), (new_copies, copies)):
                for name in new:
                    _put(new[name], index, local.rows.get(name), old[name], healthy)
            failed[index] = ~healthy
            senders = [row for row, j in enumerate(rows) if j in speaks]
            if senders and server.rules:
                sending = local.take(senders)
                at = torch.tensor(senders, device=federation.device)
                valid = server.receive(server.messages(sending), sending.clients, healthy[at])
                if self.method.state == "heard":  # who was not understood has not moved
                    for name, all_new in new_personal.items():
                        where = valid.view(-1, *[1] * (all_new.dim() - 1))
                        all_new[index[at]] = torch.where(where, all_new[index[at]], personal[name][index[at]])
        return new_personal, new_copies, failed

    def posterior(self, number: int, shared: State, personal: State, copies: State) -> State:
        """What the method's posterior steps make of the clients' personal values, {name: (J, *new shape)}.

        Chains' statistics are among them (``NAME/stats``, :data:`hierfl.inference.langevin.STATS`).

        Args:
            number: of the last round.
            shared, personal, copies: as it left them.
        """
        federation = self.federation
        order = sorted(range(federation.clients), key=lambda j: (-len(federation.train[j]), federation.ids[j]))
        new: State = {}
        for first in range(0, len(order), self.chunk):
            rows = order[first : first + self.chunk]
            index = torch.tensor(rows, device=federation.device)
            start = {k: v[index].unsqueeze(1) for k, v in {**copies, **personal}.items()}
            local = Local(self.method, federation, rows, number, self.seed, shared, start)
            for phase, step in enumerate(self.method.posterior()):
                local = step.run(local, ("posterior", phase))
            told = [name for name in local.rows if name.endswith("/stats")]
            for name in (*personal, *told):  # (draws are many: they are held once)
                value = local.rows[name].squeeze(1)
                if name not in new:
                    new[name] = value.new_empty((federation.clients, *value.shape[1:]))
                new[name].index_copy_(0, index, value)
        return new


def _finite(local: Local) -> Tensor:
    """(S,): whether all of a row's values are finite (a sum, read once, is not finite where a term is not)."""
    healthy = torch.ones(len(local.clients), dtype=torch.bool, device=local.federation.device)
    for value in local.rows.values():
        healthy = healthy & value.flatten(1).sum(1).isfinite()
    return healthy


def _put(all_new: Tensor, index: Tensor, rows: Tensor | None, old: Tensor, healthy: Tensor) -> None:
    """Writes rows (S, 1, *shape) to their clients' places; what is not there, or not healthy, stays as it was."""
    if rows is None:
        all_new[index] = old[index]
    elif healthy.device.type == "cpu" and bool(healthy.all()):  # (asking a GPU would stall it)
        all_new.index_copy_(0, index, rows.squeeze(1))
    else:
        keep = healthy.view(-1, *[1] * (old.dim() - 1))
        all_new[index] = torch.where(keep, rows.squeeze(1), old[index])
