"""Keys and streams of masks. Every key has one purpose, and every stream one use.

All keys are HKDF-SHA256 of a secret; what is derived for is in the info, behind a tag of its purpose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..wire import Unreadable
from .words import Words


def canonical(value: Any) -> bytes:
    """A json value as one string of bytes, the same wherever it is made."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(*parts: Any) -> str:
    """64 hexadecimal digits of json values."""
    return hashlib.sha256(canonical(list(parts))).hexdigest()


def derived(secret: bytes, purpose: str, *identity: Any) -> bytes:
    """A key, 32 bytes, of a secret for one purpose.

    Args:
        secret: 32 bytes.
        purpose: a word; no two uses have one.
        about: json values.
    """
    info = f"hierfl mask {purpose} 1\n".encode() + canonical(list(identity))
    return HKDF(SHA256(), 32, None, info).derive(secret)


def agreed(private: X25519PrivateKey, public: bytes) -> bytes:
    """The secret, 32 bytes, that two sites have in common.

    Raises:
        Unreadable: for a public key of which everyone knows the secret.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise Unreadable("a public key is none") from error


def pair_key(secret: bytes, context: str, site: str, other: str) -> bytes:
    """The key of the mask that two sites have in common in one question.

    Args:
        secret: of :func:`agreed`.
        context: digest of all that is common to the question.
        one, other: their names, in either order.
    """
    return derived(secret, "pair", context, *sorted((site, other)))


def self_key(seed: bytes, context: str, name: str) -> bytes:
    """The key of a site's own mask in one question."""
    return derived(seed, "self", context, name)


def add_stream(total: np.ndarray, key: bytes, words: Words, *, minus: bool = False) -> None:
    """Adds a stream to a row, in place.

    Args:
        total: (n,), uint64.
        key: 32 bytes, used for this alone.
        words: how rows are added.
        minus: whether it is taken away.
    """
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor()
    words.add(
        total, np.frombuffer(stream.update(bytes(8 * len(total))), "<u8").astype(np.uint64, copy=False), minus=minus
    )


def add_pairs(
    total: np.ndarray, name: str, secrets: Iterable[tuple[str, bytes]], context: str, words: Words, *,
    undo: bool = False,
) -> None:  # fmt: skip
    """Adds a site's pairwise masks: the site whose name sorts first adds, the other takes away.

    Args:
        total: (n,), uint64.
        name: the site's.
        secrets: (name, secret of :func:`agreed`) of every other site.
        context: of the question.
        words: how rows are added.
        undo: whether they are taken away again.
    """
    for other, secret in secrets:
        add_stream(total, pair_key(secret, context, name, other), words, minus=(name > other) != undo)
