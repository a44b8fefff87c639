"""Public keys of sites for one epoch: each signed by its site, all of them together a table that the server carries."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..keys import KEY_BYTES, Identity, PublicCard
from ..wire import Unreadable
from .streams import canonical, digest_of

_TAG = b"hierfl mask keys 1\n"
_SIGNATURE = 64
#: questions that keys are dealt for at once, at most
MOST_SLOTS = 64


def roster_digest(cards: Mapping[str, PublicCard]) -> str:
    """The digest of names and public keys of a roster."""
    return digest_of("roster", {name: [card.sign.hex(), card.seal.hex()] for name, card in cards.items()})


@dataclass(frozen=True)
class Epoch:
    """Which keys are meant.

    Attributes:
        study: digest of the study.
        roster: of :func:`roster_digest`.
        number: from 1.
        slots: for how many questions with shares there are keys; 0 without shares.
    """

    study: str
    roster: str
    number: int
    slots: int


@dataclass(frozen=True)
class SiteKeys:
    """Public keys of one site.

    Attributes:
        pair: 32 bytes, X25519, for masks of sums of all.
        seal: 32 bytes, X25519, for shares that others encrypt to it.
        slots: 32 bytes each, X25519, for masks of one question with shares.
        commitments: 32 bytes each, of the seed of the site's own mask of one question.
        signature: 64 bytes.
    """

    pair: bytes
    seal: bytes
    slots: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    signature: bytes = b""

    def _body(self) -> bytes:
        return b"".join((self.pair, self.seal, *self.slots, *self.commitments))

    def _to_sign(self, epoch: Epoch, name: str) -> bytes:
        identity = [epoch.study, epoch.roster, epoch.number, epoch.slots, name]
        return _TAG + canonical(identity) + b"\n" + self._body()

    def signed(self, epoch: Epoch, identity: Identity) -> SiteKeys:
        """The same with the signature of its site."""
        signature = identity.sign(self._to_sign(epoch, identity.name))
        return SiteKeys(self.pair, self.seal, self.slots, self.commitments, signature)

    @property
    def text(self) -> str:
        """The keys as text, which is what is sent."""
        return base64.b64encode(self._body() + self.signature).decode()

    @classmethod
    def read(cls, text: object, epoch: Epoch, card: PublicCard) -> SiteKeys:
        """Keys that the owner of a card has signed for an epoch.

        Raises:
            Unreadable: for anything else.
        """
        try:
            data = base64.b64decode(text if isinstance(text, str) else "", validate=True)
        except (binascii.Error, ValueError):
            data = b""
        wanted = KEY_BYTES * (2 + 2 * epoch.slots)
        if len(data) != wanted + _SIGNATURE:
            raise Unreadable(f"the keys of {card.name} are none")
        parts = [data[at : at + KEY_BYTES] for at in range(0, wanted, KEY_BYTES)]
        slots = tuple(parts[2 : 2 + epoch.slots])
        keys = cls(parts[0], parts[1], slots, tuple(parts[2 + epoch.slots :]), data[wanted:])
        if not card.has_signed(keys.signature, keys._to_sign(epoch, card.name)):
            raise Unreadable(f"the keys are not signed by {card.name} ({card.fingerprint})")
        return keys


@dataclass(frozen=True)
class KeyTable:
    """The signed keys of an epoch.

    Attributes:
        epoch: which.
        keys: {client: keys}; with shares some may be missing.
    """

    epoch: Epoch
    keys: Mapping[str, SiteKeys]

    @cached_property
    def digest(self) -> str:
        """The digest of all that is in it."""
        epoch = self.epoch
        return digest_of("keys", epoch.study, epoch.roster, epoch.number, epoch.slots, self.texts())

    def texts(self) -> dict[str, str]:
        """The keys of each site as text, which is what is sent."""
        return {name: keys.text for name, keys in sorted(self.keys.items())}

    @classmethod
    def read(
        cls, texts: object, epoch: Epoch, cards: Mapping[str, PublicCard], least: Collection[str] = ()
    ) -> KeyTable:
        """A table of which every signature is right.

        Args:
            texts: as of :meth:`texts`.
            epoch: whose keys they must be.
            cards: of all clients on the roster.
            least: who must be in it.

        Raises:
            Unreadable: for anything else.
        """
        if not isinstance(texts, Mapping) or not texts.keys() <= cards.keys() or not texts.keys() >= set(least):
            raise Unreadable("its keys are not those of the roster")
        keys_of_sites = {name: SiteKeys.read(texts[name], epoch, cards[name]) for name in sorted(texts)}
        public = [key for keys in keys_of_sites.values() for key in (keys.pair, keys.seal, *keys.slots)]
        if len(set(public)) < len(public):
            raise Unreadable("a key occurs twice")
        return cls(epoch, keys_of_sites)
