"""Who speaks: the key pairs of a server and of its sites, and the public cards that the others pin."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from hierfl.errors import UserError
from hierfl.files import make_folder, shown, write_whole
from hierfl.schema import read_toml

#: a name is a name of folders and in lists: letters of no alphabet look alike in it
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
#: first word of a card
CARD = "hierfl-key-1"
#: of a site's or a server's own folder: the private keys
KEY_FILE = "site.key"
#: bytes of a public and of a private key, for signing and for sealing alike
KEY_BYTES = 32
#: bytes of a card's file that are read
LARGEST_CARD = 4096


@dataclass(frozen=True)
class PublicCard:
    """The public keys of a server or a site: what others know it by.

    Attributes:
        name: its own.
        sign: 32 bytes, the Ed25519 key that its signatures are checked with.
        seal: 32 bytes, the X25519 key that others encrypt to.
    """

    name: str
    sign: bytes
    seal: bytes

    @classmethod
    def read(cls, source: str | Path) -> PublicCard:
        """A card from its line of text, or from a file that holds it.

        Args:
            source: the text; a :class:`~pathlib.Path` is a file.

        Raises:
            UserError: for what is no card.
        """
        where = shown(source) if isinstance(source, Path) else "this"
        if isinstance(source, Path):
            if not source.is_file():
                raise UserError(f"no file {where}: it is the public card that hierfl federate keys writes")
            with open(source, "rb") as file:
                source = file.read(LARGEST_CARD).decode("ascii", "replace")
        text = source.strip()
        words = text.split(" ")
        try:
            keys = base64.b64decode(words[2] if len(words) == 3 else "", validate=True)
        except (binascii.Error, ValueError):
            keys = b""
        card = cls(words[1] if len(words) == 3 else "", keys[:KEY_BYTES], keys[KEY_BYTES:])
        if len(keys) != 2 * KEY_BYTES or text != card.text or not NAME.fullmatch(card.name):
            raise UserError(f"{where} is no public card: one line '{CARD} NAME KEYS', from hierfl federate keys")
        return card

    @property
    def text(self) -> str:
        """The card as one line."""
        return f"{CARD} {self.name} {base64.b64encode(self.sign + self.seal).decode()}"

    @property
    def fingerprint(self) -> str:
        """Eight groups of four hexadecimal digits, to be compared by telephone or on paper."""
        digits = hashlib.sha256(self.sign + self.seal).hexdigest()[:32]
        return " ".join(digits[start : start + 4] for start in range(0, 32, 4))

    def has_signed(self, signature: bytes, data: bytes) -> bool:
        """Whether a signature of these bytes is by the owner of this card."""
        try:
            Ed25519PublicKey.from_public_bytes(self.sign).verify(signature, data)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class Identity:
    """The private keys of a server or a site.

    Attributes:
        name: its own.
        signing: the key that it signs with.
        sealing: the key that opens what others have encrypted to it.
    """

    name: str
    signing: Ed25519PrivateKey
    sealing: X25519PrivateKey

    def __repr__(self) -> str:  # never its keys
        return f"Identity({self.name!r})"

    @classmethod
    def make(cls, name: str) -> Identity:
        """New keys.

        Raises:
            UserError: for a name that could not be a client's.
        """
        if not NAME.fullmatch(name):
            raise UserError(f"a name is made of letters, digits, - and _, not {shown(name)!r}")
        return cls(name, Ed25519PrivateKey.generate(), X25519PrivateKey.generate())

    @classmethod
    def load(cls, home: Path) -> Identity:
        """The keys of a folder.

        Raises:
            UserError: where there are none, where others may read them, or where they are damaged.
        """
        path = home / KEY_FILE
        if not path.is_file():
            raise UserError(f"{home} has no keys: hierfl federate keys {home} --name NAME")
        return cls._read(path)

    @classmethod
    def earlier(cls, home: Path) -> list[Identity]:
        """The keys that rotations have moved aside: they open what was sealed to them, and sign nothing."""
        return [cls._read(path) for path in sorted(home.glob(f"{KEY_FILE}.*")) if path.is_file()]

    @classmethod
    def _read(cls, path: Path) -> Identity:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise UserError(f"{path} can be read by others: chmod 600 it, and rotate the key if anybody has read it")
        try:
            table = read_toml(path, {"name": str, "sign": str, "seal": str})
            keys = [bytes.fromhex(table[use]) for use in ("sign", "seal")]
            made = Ed25519PrivateKey.from_private_bytes(keys[0]), X25519PrivateKey.from_private_bytes(keys[1])
            if not NAME.fullmatch(table["name"]):
                raise ValueError
        except (UserError, ValueError):  # their words might hold a key
            raise UserError(f"{path} is damaged: take it from a backup, or move it away and make new keys") from None
        return cls(table["name"], *made)

    @property
    def card(self) -> PublicCard:
        """What others may have of it."""
        public = self.signing.public_key().public_bytes_raw(), self.sealing.public_key().public_bytes_raw()
        return PublicCard(self.name, *public)

    def save(self, home: Path, *, rotate: bool = False) -> Path:
        """Writes the private keys, for this user alone, and the card beside them; the card's file.

        Args:
            home: the folder; no one else may enter it afterwards.
            rotate: whether keys that are there are moved aside, to ``site.key.FINGERPRINT``.

        Raises:
            UserError: where keys are there that are not to be moved aside.
        """
        path, card = home / KEY_FILE, home / f"{self.name}.pub"
        if path.exists() and not rotate:
            raise UserError(f"{path} exists: --rotate moves it aside and makes new keys; send the new card to all")
        make_folder(home)
        home.chmod(0o700)
        if path.exists():
            present = Identity.load(home)
            path.rename(home / f"{KEY_FILE}.{present.card.fingerprint.replace(' ', '')}")
        private = self.signing.private_bytes_raw().hex(), self.sealing.private_bytes_raw().hex()
        text = f'name = "{self.name}"\nsign = "{private[0]}"\nseal = "{private[1]}"\n'
        write_whole(path, text.encode(), mode=0o600)
        write_whole(card, f"{self.card.text}\n".encode())
        return card

    def sign(self, data: bytes) -> bytes:
        """Its signature, 64 bytes."""
        return self.signing.sign(data)

    def shared_with(self, public: bytes) -> bytes:
        """The secret, 32 bytes, that it has in common with the owner of another sealing key.

        Raises:
            ValueError: for bytes that are no key.
        """
        return self.sealing.exchange(X25519PublicKey.from_public_bytes(public))
