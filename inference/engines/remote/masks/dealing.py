"""Shares of a site's secrets: dealt to the others, encrypted to each, and given once a list of survivors is signed."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from .keyring import Keyring
from .shamir import SHARE_BYTES, share
from .streams import derived

#: the two secrets of a site of which shares are dealt, in this order; of one site one of them is ever given
KEY, SEED = 0, 1
#: bytes of a packet: a share of either secret, encrypted for one site
PACKET_BYTES = 2 * SHARE_BYTES + 16
#: A key encrypts one packet: it needs no other.
_NONCE = bytes(12)


def point_of(name: str, everyone: Sequence[str]) -> int:
    """The point at which a site's polynomials of shares are evaluated: its position in the group, from 1."""
    return everyone.index(name) + 1


def own_shares(ring: Keyring, slot: int, everyone: Sequence[str], least: int) -> list[tuple[bytes, bytes]]:
    """Shares of both secrets of one's own, for each of a group; the same ones whenever they are made.

    Args:
        ring: the site's secrets.
        slot: which.
        everyone: the group, ascending.
        least: how many shares tell a secret.

    Raises:
        Refused: where the secrets are gone.
    """
    own_slot, points = ring.slot(slot), range(1, len(everyone) + 1)
    shares_of_both = [
        share(bytes.fromhex(secret), points, least, derived(bytes.fromhex(own_slot.deal), f"polynomial of the {use}"))
        for use, secret in (("key", own_slot.key), ("seed", own_slot.seed))
    ]
    return list(zip(*shares_of_both, strict=True))


def _packet_key(ring: Keyring, sender: str, recipient: str, slot: int) -> bytes:
    own = ring.identity.name
    other = recipient if sender == own else sender
    assert ring.table is not None  # as of the callers
    return derived(ring.secret_with(other, "seal"), "packet", ring.table.digest, sender, recipient, slot)


def packets(ring: Keyring, slot: int, everyone: Sequence[str], least: int) -> list[bytes]:
    """What a site deals to the others of its group who have keys, in order of their names."""
    assert ring.table is not None  # as of the callers
    own, sealed = ring.identity.name, []
    for name, (key, seed) in zip(everyone, own_shares(ring, slot, everyone, least), strict=True):
        if name != own and name in ring.table.keys:
            cipher = ChaCha20Poly1305(_packet_key(ring, own, name, slot))
            sealed.append(cipher.encrypt(_NONCE, key + seed, None))
    return sealed


def opened(ring: Keyring, packet: bytes, sender: str, slot: int, which: int) -> bytes:
    """The share of one secret of another site; empty for a packet that this site did not send to this one.

    Args:
        ring: of the recipient.
        packet: as it was carried.
        sender: whose secret.
        slot: which.
        which: :data:`KEY` or :data:`SEED`.
    """
    try:
        plain = ChaCha20Poly1305(_packet_key(ring, sender, ring.identity.name, slot)).decrypt(_NONCE, packet, None)
    except InvalidTag:
        return b""
    return plain[which * SHARE_BYTES : (which + 1) * SHARE_BYTES]
