"""Questions to sites, and their answers, checked as far as every kind of answer is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch

from hierfl.data.client_names import in_words
from hierfl.errors import UserError
from hierfl.files import shown
from hierfl.plurals import counted

from ...messages.form import LONGEST
from ...state import State
from .refusals import LASTING, refusal, refusal_words
from .wire import LARGEST_HEADER, Handshake, Unreadable, decode, encode

log = logging.getLogger("hierfl")

#: requests by client -> answers by client; of those who were late, failed or are not there it holds none
Ask = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]


class Courier(Protocol):
    """An :data:`Ask` over a connection: by files, or Flower.

    Attributes:
        of_all: kinds of requests that count only with the answers of all: a refusal ends the waiting.
    """

    of_all: Collection[str]

    def __call__(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Asks, and waits for answers."""
        ...

    def leave(self, requests: Mapping[str, bytes]) -> None:
        """Sends requests whose answers do not matter, also to clients that are not on the roster."""
        ...


class Questions:
    """Asks sites.

    Args:
        clients: the roster.
        ask: sends requests and collects answers.
        handshake: what server and sites have in common.
        device: of what they answer.
        restarts: how often the server has declared that it asks again: above 0 every request states it.

    Attributes:
        counted: (J,), the last round in which each client's message was used: every request says it.
        unprepared: who has answered that it lacks what the others agreed on before the first round.
        refusals: {client: class} of those whose last answer was a refusal; see
            :data:`~hierfl.inference.engines.remote.refusals.CLASSES`.
        answered: numbers of those who have answered the last question.
    """

    def __init__(
        self, clients: Sequence[str], ask: Ask, handshake: Handshake, device: torch.device, restarts: int = 0
    ) -> None:
        self.ids, self.ask, self.handshake, self.device = list(clients), ask, handshake, device
        self.restarts = restarts
        self.counted = torch.zeros(len(self.ids), dtype=torch.int64)
        self.unprepared: set[str] = set()
        self.refusals: dict[str, str] = {}
        self.answered: list[int] = []

    def asked(
        self, question: Mapping[str, Any], tensors: State, clients: Sequence[int], most: int,
        own: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> dict[int, tuple[dict[str, Any], State]]:  # fmt: skip
        """What clients answer, in their order.

        Args:
            question: the request's header.
            tensors: what goes with it.
            clients: who is asked.
            most: bytes of tensors that an answer may hold.
            own: what the header says to one client alone.
        """
        common = {
            **question,
            "handshake": self.handshake.table(),
            **({"restart": self.restarts} if self.restarts else {}),
        }
        requests = {
            self.ids[j]: encode(
                {**common, "client": self.ids[j], "counted": int(self.counted[j]), **(own or {}).get(j, {})}, tensors
            )
            for j in clients
        }
        self.unprepared -= requests.keys()
        answers, readable = self.ask(requests), {}
        for j in clients:
            if self.ids[j] not in answers:
                continue
            try:
                head, tensors_of_site = decode(answers[self.ids[j]], most + LARGEST_HEADER)
                if head.get("unprepared") is True:
                    self.unprepared.add(self.ids[j])
                self._note(self.ids[j], refusal(head))
                if "error" in head or self.ids[j] in self.refusals:
                    raise Unreadable(f"it answers: {shown(str(head.get('error', 'refused'))[:LONGEST])}")
                if head.get("client") != self.ids[j]:
                    raise Unreadable("another client has answered")
                if head.get("round") != question["round"]:
                    raise Unreadable("it is of another round")
                readable[j] = head, {k: v.to(self.device) for k, v in tensors_of_site.items()}
            except Unreadable as error:
                if self.ids[j] not in self.refusals:  # of those it was said
                    self.refuse(j, question["kind"], error)
        missing = [self.ids[j] for j in clients if self.ids[j] not in answers and self.ids[j] not in self.refusals]
        if missing:
            names = ", ".join(missing[:10]) + ", ..." * (len(missing) > 10)
            log.warning("no answer (%s, round %d) from %s", question["kind"], question["round"], names)
        self.answered = list(readable)
        return readable

    def _note(self, client: str, refused: str) -> None:
        if refused and self.refusals.get(client) != refused:
            log.warning("%s refuses (%s): its own log says why", in_words(client), refused)
        if refused:
            self.refusals[client] = refused
        else:
            self.refusals.pop(client, None)

    def missing(
        self, clients: Sequence[int], words: str, more: str = "go on when all are there (--resume)"
    ) -> UserError:
        """What is said where the answers of all these clients are needed, and some have not come.

        Args:
            clients: who was asked.
            words: how many have answered.
            more: what to do, where none refuses.
        """
        refused = {self.ids[j]: self.refusals[self.ids[j]] for j in clients if self.ids[j] in self.refusals}
        return UserError(f"{words}; {refusal_words(refused)}" if refused else f"{words}: {more}")

    def check_quorum(self, clients: Sequence[int], least: int | None) -> None:
        """Ends a fit whose rounds cannot count any more, for those who refuse for good.

        Args:
            clients: who was to report.
            least: with how many messages a round counts; None for all.

        Raises:
            UserError: where too few are left.
        """
        lasting = [j for j in clients if self.refusals.get(self.ids[j]) in LASTING]
        needed = len(clients) if least is None else least
        if lasting and len(clients) - len(lasting) < needed:
            raise self.missing(lasting, f"a round counts with {counted(needed, 'message')}, and fewer can come")

    def refuse(self, client: int, kind: str, error: Exception) -> None:
        """Says that an answer is not used."""
        log.warning("the answer of %s (%s) is not used: %s", in_words(self.ids[client]), kind, error)
