"""What is known of a request, its reply as it leaves the site, and the line of both in the audit file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hierfl.errors import UserError
from hierfl.inference.engines.remote.files import LARGEST, REPLY
from hierfl.inference.engines.remote.keys import Identity
from hierfl.inference.engines.remote.sealed import question_digest, read_request, seal_reply, signed_reply
from hierfl.inference.engines.remote.wire import Unreadable, encode
from hierfl.plain_folder import PlainFolder

from ..roster_keys import SERVER
from ..study import Study
from .answers import Slot
from .audit import Audit
from .heads import Heads
from .ledger import Ledger
from .slots import NAMES


class Refused(Exception):
    """A request that is not answered.

    Attributes:
        about: the class of the reason, which leaves.
        reason: in words, which stay.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.about, self.reason = kind, reason


@dataclass
class Asked:
    """What is known of a request so far.

    Attributes:
        request: as it was carried.
        outer: its header; of what is no request, one that says nothing.
        question: digest of what it asks.
        charged: the same of the question as the ledger counts it, which is without its masks.
        slot: its position in the study.
        points: that it was charged.
        again: whether it was answered before, and the reply is the stored one.
    """

    request: bytes
    outer: dict[str, Any]
    question: str = ""
    charged: str = ""
    slot: Slot | None = None
    points: int = 0
    again: bool = False

    @classmethod
    def unsigned(cls, request: bytes) -> Asked:
        """A request that no one may have signed."""
        try:
            plain, head = read_request(request)
            return cls(
                request, head, digest := question_digest(plain), digest
            )  # so that a server hears that it is refused
        except Unreadable:
            return cls(request, {"kind": "unknown", "round": 0, "study": ""})


class Replies:
    """Seals what a site answers, and puts it on record.

    Args:
        identity: the site's keys.
        audit: of its home.
        ledger: of this account.
    """

    def __init__(self, identity: Identity, audit: Audit, ledger: Ledger) -> None:
        self.identity, self.audit = identity, audit
        self.heads = Heads.of_home(ledger, audit, identity)

    def sealed(self, asked: Asked, study: Study, plain: bytes, refused: str = "") -> bytes:
        """A plain answer as it leaves the site.

        Raises:
            UserError: for a study without a card of its server.
        """
        server = study.keys.get(SERVER)
        if server is None:
            raise UserError(f"{study.path} has no card of the server: there is no one to answer to")
        return seal_reply(
            plain, self.identity, server, asked.outer, asked.question, refused=refused, audit=self.audit.head[1]
        )

    def refusal(self, asked: Asked, study: Study, error: Refused) -> bytes:
        """That there is no answer, and the class of the reason."""
        head = {
            "error": f"refused ({error.about})", "refused": error.about, "client": self.identity.name,
            "round": asked.outer["round"],
        }  # fmt: skip
        return self.sealed(asked, study, encode(head, {}), error.about)

    def note(self, asked: Asked, study: Study, reply: bytes, error: Refused | None) -> None:
        """A line of the audit file, which is on the disk before the reply is visible."""
        entries: Mapping[str, Any] = {
            "study": study.digest, "client": self.identity.name, "kind": asked.outer["kind"],
            "round": asked.outer["round"], "what": asked.slot.what if asked.slot else "",
            "request": _digest(asked.request), "question": asked.question, "reply": _digest(reply),
            "refused": error.about if error else "", "reason": error.reason if error else "",
            "points": asked.points, "again": asked.again, "bytes": len(reply),
        }  # fmt: skip
        self.heads.append(entries)

    def unknown(self, study: Study, exchange: Path) -> str:
        """A reply that this site has signed, of which neither its home nor its account's ledger has a line.

        Another home has given it, and the ledger was lost since, or is another account's.

        Args:
            study: that is answered.
            exchange: the exchange folder.

        Returns:
            The name of its file; empty where there is none.

        Raises:
            OSError: where the folder cannot be read.
        """
        folder, own = PlainFolder(exchange, self.identity.name, "replies"), self.identity.card
        charges = self.heads.ledger.asked(study.digest, own.name)
        slots = {tuple(charge.slot.split()[:2]) for charge in charges}
        for name in folder.names():
            try:
                head = signed_reply(folder.read(name, LARGEST), own) if name.endswith(REPLY) else {}
            except Unreadable:  # anybody may write there
                continue
            slot = head.get("kind"), str(head.get("round"))
            charged = head.get("study") == study.digest and not head["refused"] and slot[0] in NAMES
            if charged and slot not in slots and not self.audit.has(head["audit"]):
                return name
        return ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
