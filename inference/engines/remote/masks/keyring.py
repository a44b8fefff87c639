"""A site's own secrets of one epoch, on its own disk. Those of earlier epochs and of past questions are gone."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hierfl.errors import UserError
from hierfl.files import make_folder, write_whole

from ..keys import KEY_BYTES, Identity, PublicCard
from ..refusals import Refused
from ..wire import Unreadable
from .signed_keys import Epoch, KeyTable, SiteKeys, roster_digest
from .streams import agreed, derived

#: of a site's folder of masks
KEYRING_FILE = "epoch.json"


@dataclass
class Slot:
    """Secrets of one question with shares, and what was done with them.

    Attributes:
        key: of the pairwise masks, 32 bytes, hexadecimal.
        seed: of the site's own mask.
        deal: of the polynomials that share both.
        question: what was answered with it, of :meth:`.question.Question.answered`; empty before.
        survivors: digest of the list of survivors that was signed; empty before.
    """

    key: str = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw().hex())
    seed: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))
    deal: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES))
    question: dict[str, Any] = field(default_factory=dict)
    survivors: str = ""


def commitment(seed: bytes) -> bytes:
    """What is signed of the seed of a site's own mask: 32 bytes that say nothing of it, and fit no other."""
    return derived(seed, "commitment")


class Keyring:
    """Secrets of the present epoch.

    Args:
        identity: of the site.
        cards: of the roster.
        study: digest of the study.
        folder: of the site's masks.

    Attributes:
        number: of the epoch; 0 before the first.
        slots: those of which there are secrets still.
        table: the signed keys of all, once this site has them.

    Raises:
        UserError: for a damaged file.
    """

    def __init__(self, identity: Identity, cards: Mapping[str, PublicCard], study: str, folder: Path) -> None:
        self.identity, self.cards, self.study, self.path = identity, dict(cards), study, folder / KEYRING_FILE
        self.roster = roster_digest(cards)
        self.number, self.count = 0, 0
        self.slots: dict[int, Slot] = {}
        self._pair = self._seal = b""
        self._text = ""
        self._agreed: dict[tuple[str, str], bytes] = {}
        self.table: KeyTable | None = None
        if self.path.is_file():
            self._load()

    @property
    def epoch(self) -> Epoch:
        """The present one."""
        return Epoch(self.study, self.roster, self.number, self.count)

    @property
    def text(self) -> str:
        """This site's own public keys, as they are carried."""
        return self._text

    def begin(self, number: int, count: int) -> None:
        """Makes secrets for an epoch, and forgets those of the one before; a no-op for the present one.

        Raises:
            Refused: "answered", for an earlier one, or the present one with another number of slots.
        """
        if (number, count) == (self.number, self.count):
            return
        if number <= self.number:
            raise Refused(f"keys of epoch {number} are asked for, and this site is at {self.number}", "answered")
        self.number, self.count, self.table = number, count, None
        self._pair, self._seal = (X25519PrivateKey.generate().private_bytes_raw() for _ in range(2))
        self.slots = {slot: Slot() for slot in range(count)}
        self._agreed = {}
        public = [_public(bytes.fromhex(slot.key)) for slot in self.slots.values()]
        committed = [commitment(bytes.fromhex(slot.seed)) for slot in self.slots.values()]
        keys = SiteKeys(_public(self._pair), _public(self._seal), tuple(public), tuple(committed))
        self._text = keys.signed(self.epoch, self.identity).text
        self.save()

    def accept(self, texts: object) -> None:
        """Takes the signed keys of all: one table for an epoch.

        Raises:
            Unreadable: for keys that are not those of the roster, or lack this site's own.
            Refused: "answered", for another table than the first.
        """
        table = KeyTable.read(texts, self.epoch, self.cards, [self.identity.name])
        if table.keys[self.identity.name].text != self._text:
            raise Unreadable("its keys are not those that this site has made")
        if self.table is not None and self.table.digest != table.digest:
            raise Refused("it has other keys of this epoch than it had first", "answered")
        if self.table is None:
            self.table = table
            self.save()

    def slot(self, number: int) -> Slot:
        """Secrets of a question.

        Raises:
            Refused: "answered", where they are gone.
        """
        if number not in self.slots:
            raise Refused("the secrets of this question are gone: a later one was answered", "answered")
        return self.slots[number]

    def note(self, number: int, *, question: Mapping[str, Any] | None = None, signed: str = "") -> None:
        """Notes on the disk what secrets were used for; what they were used for before stays.

        Raises:
            Refused: "answered", where it was something else.
        """
        slot = self.slot(number)
        if (question and slot.question not in ({}, question)) or (signed and slot.survivors not in ("", signed)):
            raise Refused("the keys of this question were used for another one", "answered")
        slot.question = dict(question or slot.question)
        slot.survivors = signed or slot.survivors
        self.save()

    def forget(self, before: int) -> None:
        """Forgets the secrets of earlier questions; the caller saves."""
        self.slots = {number: slot for number, slot in self.slots.items() if number >= before}

    def secret_with(self, other: str, use: str) -> bytes:
        """The secret that this site has in common with another, 32 bytes.

        Args:
            other: its name, which is in the table.
            use: "pair", "seal", or the number of a slot.
        """
        assert self.table is not None  # as of the callers
        if (agreed_secret := self._agreed.get((other, use))) is not None:
            return agreed_secret
        keys = self.table.keys[other]
        if use in ("pair", "seal"):
            private, public = (self._pair, keys.pair) if use == "pair" else (self._seal, keys.seal)
        else:
            private, public = bytes.fromhex(self.slot(int(use)).key), keys.slots[int(use)]
        secret = agreed(X25519PrivateKey.from_private_bytes(private), public)
        if use in ("pair", "seal"):  # those of a slot are needed once
            self._agreed[other, use] = secret
        return secret

    def own_key(self, purpose: str, context: str) -> bytes:
        """A key, 32 bytes, that no other site knows, for one purpose in one question."""
        return derived(self._pair, purpose, context, self.identity.name)

    # -- the file -----------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Writes the keys to disk, for this user alone."""
        entries: dict[str, Any] = {
            "study": self.study, "roster": self.roster, "number": self.number, "count": self.count,
            "pair": self._pair.hex(), "seal": self._seal.hex(), "text": self._text,
            "slots": {str(number): asdict(slot) for number, slot in self.slots.items()},
            "table": None if self.table is None else self.table.texts(),
        }  # fmt: skip
        make_folder(self.path.parent)
        self.path.parent.chmod(0o700)
        write_whole(self.path, json.dumps(entries).encode(), mode=0o600)

    def _load(self) -> None:
        try:
            entries = json.loads(self.path.read_text("utf-8"))
            if entries["study"] != self.study:
                raise UserError(f"{self.path} belongs to another study; a study needs a folder of its own")
            self.number, self.count = int(entries["number"]), int(entries["count"])
            if entries["roster"] != self.roster:  # its secrets are of no use; its number is past
                self.count = -1
                return
            self._pair, self._seal = bytes.fromhex(entries["pair"]), bytes.fromhex(entries["seal"])
            self._text = str(entries["text"])
            self.slots = {int(number): Slot(**slot) for number, slot in entries["slots"].items()}
            if entries["table"] is not None:
                self.table = KeyTable.read(entries["table"], self.epoch, self.cards)
        except (Unreadable, KeyError, TypeError, ValueError) as error:
            if isinstance(error, UserError) and not isinstance(error, Unreadable):
                raise
            raise UserError(f"{self.path} is damaged: move it away; the server asks for new keys") from error


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
