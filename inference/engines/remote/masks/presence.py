"""Whether a site's message is in a sum: said to the other sites alone, which open a sum of enough messages or none.

A message that fails a check of its own site becomes zeros. A server could look for broadcast values at which all
messages but one fail. So with shares each masked answer holds a packet for each of the others, which says in one byte
whether the message is there. A site signs a list of survivors where so many of these say yes, and each survivor has
said something: else the mask of a site's own would be known before it has answered with it. In a sum of all sites a
message that is not there is random numbers instead of zeros, beside the counts: nothing opens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from torch import Tensor

from .keyring import Keyring
from .layout import Layout
from .parts import COUNTS
from .streams import add_stream, derived

#: bytes of a packet
TOLD_BYTES = 1 + 16
#: A key encrypts one packet, and a question has one answer: it needs no other.
_NONCE = bytes(12)


def _key(ring: Keyring, sender: str, recipient: str, context: str) -> bytes:
    assert ring.table is not None  # as of the callers
    secret = ring.secret_with(recipient if sender == ring.identity.name else sender, "seal")
    return derived(secret, "told", ring.table.digest, sender, recipient, context)


def presence_packets(ring: Keyring, context: str, members: Sequence[str], reported: bool) -> Tensor:
    """Packets for the other members, in order of their names; the same ones whenever they are made.

    Args:
        ring: the site's secrets.
        context: digest of the question.
        members: names whose masks cancel, ascending.
        reported: whether the site's message is in its answer.

    Returns:
        (members - 1, :data:`TOLD_BYTES`), uint8.
    """
    own = ring.identity.name
    rows = [
        ChaCha20Poly1305(_key(ring, own, other, context)).encrypt(_NONCE, bytes([reported]), None)
        for other in members if other != own
    ]  # fmt: skip
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).reshape(-1, TOLD_BYTES)


def message_present(ring: Keyring, context: str, sender: str, packet: bytes) -> bool | None:
    """Whether a site has said to this one that its message is in its answer to a question.

    Args:
        ring: of this site.
        context: digest of the question.
        sender: who has said it.
        packet: :data:`TOLD_BYTES`.

    Returns:
        None for a packet that is none: so far as this site knows the other one has not answered the question.
    """
    try:
        return ChaCha20Poly1305(_key(ring, sender, ring.identity.name, context)).decrypt(_NONCE, packet, None) == b"\1"
    except InvalidTag:
        return None


def spoilt(row: np.ndarray, ring: Keyring, context: str, layout: Layout) -> np.ndarray:
    """What a site adds to a sum of all where it has no message: its counts, and random numbers that no one else knows.

    Args:
        row: (size,), uint64: its counts, and zeros.
        ring: the site's secrets.
        context: digest of the question.
        layout: of the row.
    """
    noise = np.zeros_like(row)
    add_stream(noise, ring.own_key("spoilt", context), layout.words)
    noise[: len(COUNTS)] = row[: len(COUNTS)]
    return noise
