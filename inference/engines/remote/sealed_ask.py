"""The server's end of sealed requests."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hierfl.files import write_whole
from hierfl.schema import Number, Schema, read_json

from .keys import Identity, PublicCard
from .questions import Ask
from .sealed import open_reply, question_digest, seal_request, study_of
from .wire import Unreadable

log = logging.getLogger("hierfl")
#: of a server's folder: how many requests each site was sent, and a digest of the last
SEQUENCE_FILE = "sequence.json"
SEQUENCE: Schema = {"*": {"number": Number(int, 0), "request": str}}


class SealedAsk:
    """An :data:`~hierfl.inference.engines.remote.questions.Ask` that seals requests, and opens their replies.

    Args:
        ask: carries them.
        identity: the server's.
        cards: each client's.
        folder: the server's own: how many requests each site was sent is kept there.
        earlier: the server's keys before rotations.
    """

    def __init__(
        self, ask: Ask, identity: Identity, cards: Mapping[str, PublicCard], folder: Path,
        earlier: Sequence[Identity] = (),
    ) -> None:  # fmt: skip
        self.ask, self.identity, self.cards, self.earlier = ask, identity, dict(cards), list(earlier)
        self.path = folder / SEQUENCE_FILE
        self.sent: dict[str, dict[str, Any]] = read_json(self.path, SEQUENCE) if self.path.is_file() else {}

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Asks; an answer that is not by the site that was asked, and to this question, is none."""
        replies, opened = self.ask(self.sealed(requests)), {}
        for name in requests:
            if name not in replies:
                continue
            try:
                opened[name] = open_reply(
                    replies[name], self.identity, self.cards[name], question_digest(requests[name]),
                    study=study_of(requests[name]), earlier=self.earlier,
                )  # fmt: skip
            except Unreadable as error:
                log.warning("the reply of %s is dropped: %s", name, error)
                self._refusing.discard(name)  # the carrier has taken it for the site's
        return opened

    @property
    def _refusing(self) -> set[str]:
        """Who is not waited for any more, at what carries requests."""
        return getattr(self.ask, "refusing", set())

    def sealed(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Requests as they are carried, each with the next number of its client: that is on the disk before they go.

        The last one sent once more is the same bytes: a reply that has come while the server was away is used.
        """
        for name, plain in requests.items():
            last, digest = self.sent.get(name, {"number": 0, "request": ""}), hashlib.sha256(plain).hexdigest()
            if digest != last["request"]:
                self.sent[name] = {"number": last["number"] + 1, "request": digest}
        write_whole(self.path, json.dumps(self.sent, indent=1).encode())
        return {
            name: seal_request(plain, self.identity, study_of(plain), self.sent[name]["number"])
            for name, plain in requests.items()
        }

    def leave(self, requests: Mapping[str, bytes]) -> None:
        """Sends requests whose answers do not matter, where what carries them can."""
        if hasattr(self.ask, "leave"):
            self.ask.leave(self.sealed(requests))
