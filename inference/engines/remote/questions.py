"""Questions to sites, and their answers, checked as far as every kind of answer is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hierfl.files import shown

from ...messages.form import LONGEST
from ...state import State
from .wire import LARGEST_HEADER, Handshake, Unreadable, decode, encode

log = logging.getLogger("hierfl")

#: requests by client -> answers by client; of those who were late, failed or are not there it holds none
Ask = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]


class Questions:
    """Asks sites.

    Args:
        clients: the roster.
        ask: sends requests and collects answers.
        handshake: what server and sites have in common.
        device: of what they answer.

    Attributes:
        counted: (J,), the last round in which each client's message was used: every request says it.
        unprepared: who has answered that it lacks what the others agreed on before the first round.
    """

    def __init__(self, clients: Sequence[str], ask: Ask, handshake: Handshake, device: torch.device) -> None:
        self.ids, self.ask, self.handshake, self.device = list(clients), ask, handshake, device
        self.counted = torch.zeros(len(self.ids), dtype=torch.int64)
        self.unprepared: set[str] = set()

    def asked(
        self, about: Mapping[str, Any], tensors: State, clients: Sequence[int], most: int,
        own: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> dict[int, tuple[dict[str, Any], State]]:  # fmt: skip
        """What clients answer, in their order.

        Args:
            about: the request's header.
            tensors: what goes with it.
            clients: who is asked.
            most: bytes of tensors that an answer may hold.
            own: what the header says to one client alone.
        """
        said = {**about, "handshake": self.handshake.table()}
        requests = {
            self.ids[j]: encode(
                {**said, "client": self.ids[j], "counted": int(self.counted[j]), **(own or {}).get(j, {})}, tensors
            )
            for j in clients
        }
        self.unprepared -= requests.keys()
        answers, found = self.ask(requests), {}
        for j in clients:
            if self.ids[j] not in answers:
                continue
            try:
                head, held = decode(answers[self.ids[j]], most + LARGEST_HEADER)
                if head.get("unprepared") is True:
                    self.unprepared.add(self.ids[j])
                if "error" in head:
                    raise Unreadable(f"it answers: {shown(str(head['error'])[:LONGEST])}")
                if head.get("client") != self.ids[j]:
                    raise Unreadable("another client has answered")
                if head.get("round") != about["round"]:
                    raise Unreadable("it is of another round")
                found[j] = head, {k: v.to(self.device) for k, v in held.items()}
            except Unreadable as error:
                self.refuse(j, about["kind"], error)
        missing = [self.ids[j] for j in clients if self.ids[j] not in answers]
        if missing:
            names = ", ".join(missing[:10]) + ", ..." * (len(missing) > 10)
            log.warning("no answer (%s, round %d) from %s", about["kind"], about["round"], names)
        return found

    def refuse(self, client: int, kind: str, error: Exception) -> None:
        """Says that an answer is not used."""
        log.warning("the answer of %s (%s) is not used: %s", self.ids[client], kind, error)
