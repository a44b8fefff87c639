"""Refusals: what a site says of a question that it does not answer. A class leaves the site, and no value."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .wire import Unreadable, header

#: all that a refusal may say of its reason; the reason in words is in the site's own log
CLASSES = (
    "policy", "approval", "budget", "answered", "bounds", "data", "version", "signature", "withdrawn", "failed",
)  # fmt: skip
#: classes that a next round does not mend: such a site is asked on, and not waited for
LASTING = frozenset(CLASSES) - {"answered", "bounds", "failed"}
#: kinds of requests that count only with the answers of all sites
OF_ALL = frozenset({"prepare", "sums", "calibration"})


class Refused(Unreadable):
    """A request that a site does not answer.

    Args:
        words: for the site's own log.
        refused: its class, one of :data:`CLASSES`.
    """

    def __init__(self, words: str, refused: str) -> None:
        super().__init__(words)
        self.refused = refused


def refusal(head: Mapping[str, Any]) -> str:
    """The class of a refusal by an answer's header; empty for an answer.

    An error without a class is "failed". A site that has yet to hear what all have agreed on refuses nothing.
    """
    kind = head.get("refused")
    if isinstance(kind, str) and kind in CLASSES:
        return kind
    return "failed" if (kind or "error" in head) and head.get("unprepared") is not True else ""


def refusal_in(reply: bytes) -> str:
    """The same of an answer's bytes; empty for bytes without a header, which refuse nothing."""
    try:
        return refusal(header(reply))
    except Unreadable:
        return ""


def kind_of(requests: Mapping[str, bytes]) -> object:
    """What requests that go out together ask for; None for none, and for bytes that say nothing."""
    try:
        return next((header(request).get("kind") for request in requests.values()), None)
    except Unreadable:
        return None


def note_refusal(refusing: set[str], client: str, reply: bytes) -> None:
    """Adds a client to those who refuse for good, or takes it away, by what it has answered."""
    if refusal_in(reply) in LASTING:
        refusing.add(client)
    else:
        refusing.discard(client)


def ends_waiting(kind: object, of_all: Collection[str], replies: Iterable[bytes]) -> bool:
    """Whether a refusal among replies makes it useless to wait for others.

    A refusal that a next round may mend ends the waiting for sums, and not for a round.

    Args:
        kind: of the request.
        of_all: kinds that count only with the answers of all.
        replies: that have come.
    """
    if kind not in of_all:
        return False
    enough = LASTING if kind == "round" else CLASSES
    return any(refusal_in(reply) in enough for reply in replies)


def refusal_words(refusals: Mapping[str, str]) -> str:
    """Who refuses, and what to do, in one line.

    Args:
        refusals: {client: class}.
    """
    who = ", ".join(f"{client} refuses ({kind})" for client, kind in sorted(refusals.items()))
    whose, they = ("its own log says", "it answers") if len(refusals) == 1 else ("their own logs say", "they answer")
    them = "it" if len(refusals) == 1 else "them"
    return f"{who}: {whose} why; go on when {they} (--resume), or take {them} off the roster"
