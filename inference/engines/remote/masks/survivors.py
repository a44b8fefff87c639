"""Lists of survivors: whose answers a sum is over. Each site signs one list for a question, ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ..keys import Identity, PublicCard
from ..wire import Unreadable
from .streams import canonical, digest_of

_TAG = b"hierfl mask survivors 1\n"


@dataclass(frozen=True)
class SurvivorList:
    """What is signed before a sum is opened.

    Attributes:
        table: digest of the signed keys, which names study, roster and epoch, too.
        slot: whose keys mask the question.
        context: digest of all that is common to the question.
        broadcast: digest of the broadcast values and of what kind of sum is asked of them.
        own: digest of who was asked to add what.
        members: names whose masks cancel, ascending.
        survivors: those of them whose answers are in the sum, ascending.
    """

    table: str
    slot: int
    context: str
    broadcast: str
    own: str
    members: tuple[str, ...]
    survivors: tuple[str, ...]

    def to_sign(self) -> bytes:
        """The bytes that a signature is of."""
        return _TAG + canonical(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """The list as json, which is what is sent."""
        return {
            "table": self.table, "slot": self.slot, "context": self.context, "broadcast": self.broadcast,
            "own": self.own, "members": list(self.members), "survivors": list(self.survivors),
        }  # fmt: skip

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return digest_of("survivors", self.as_json())

    @property
    def opens(self) -> str:
        """Digest of over whom a broadcast is summed."""
        return digest_of("opens", self.own, list(self.members), list(self.survivors))

    @classmethod
    def read(cls, value: object) -> SurvivorList:
        """What :meth:`as_json` gave.

        Raises:
            Unreadable: for anything else.
        """
        if not isinstance(value, Mapping) or value.keys() != cls.__dataclass_fields__.keys():
            raise Unreadable("its list of survivors is none")
        digests, slot = {name: value[name] for name in ("table", "context", "broadcast", "own")}, value["slot"]
        members, survivors = (sorted_names(value[name]) for name in ("members", "survivors"))
        if not all(is_digest(text) for text in digests.values()) or not is_number(slot):
            raise Unreadable("its list of survivors is none")
        if not set(survivors) <= set(members):
            raise Unreadable("its list of survivors names others")
        return cls(slot=slot, members=members, survivors=survivors, **digests)

    def signature(self, identity: Identity) -> bytes:
        """64 bytes."""
        return identity.sign(self.to_sign())

    def signers(self, signatures: object, cards: Mapping[str, PublicCard]) -> list[str]:
        """Who has signed it.

        Args:
            signatures: {name: hexadecimal digits}, from outside.
            cards: of those who may.

        Raises:
            Unreadable: where one of them is not by whom it says.
        """
        if not isinstance(signatures, Mapping) or not signatures.keys() <= cards.keys():
            raise Unreadable("signatures are not those of the roster")
        data = self.to_sign()
        for name, text in signatures.items():
            if not cards[name].has_signed(as_bytes(text), data):
                raise Unreadable(f"the list of survivors is not signed by {name}")
        return sorted(signatures)


def sorted_names(value: object) -> tuple[str, ...]:
    """Names, ascending, none twice.

    Raises:
        Unreadable: for anything else.
    """
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise Unreadable("it names no clients")
    if value != sorted(set(value)):
        raise Unreadable("its names are in no order")
    return tuple(value)


def is_digest(value: object) -> TypeGuard[str]:
    """Whether it is 64 hexadecimal digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def is_number(value: object, least: int = 0, most: int = 2**31 - 1) -> TypeGuard[int]:
    """Whether it is a whole number in a range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def as_bytes(text: object) -> bytes:
    """The bytes of hexadecimal digits; none for what is none."""
    try:
        return bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""
