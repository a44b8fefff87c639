"""Masks that are left in a sum over survivors: secrets from shares, checked, and their masks taken away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from ..keys import KEY_BYTES
from ..wire import Unreadable
from .dealing import point_of
from .groups import threshold
from .keyring import commitment
from .shamir import combine, weights_of
from .signed_keys import KeyTable
from .streams import add_pairs, add_stream, agreed, self_key
from .survivors import SurvivorList
from .words import Words

log = logging.getLogger("hierfl")
#: {whose secret: {who gives a share: 66 bytes}}
Shares = Mapping[str, Mapping[str, bytes]]


class Recovery:
    """Secrets of a sum over survivors.

    Args:
        survived: the list.
        table: the signed keys.
        everyone: names among whom shares were dealt, ascending.
    """

    def __init__(self, survived: SurvivorList, table: KeyTable, everyone: Sequence[str]) -> None:
        self.survived, self.table, self.everyone = survived, table, list(everyone)
        self.least = threshold(len(everyone))
        self._weights: dict[tuple[int, ...], list[int]] = {}

    def unmasked(self, total: np.ndarray, shares: Shares, words: Words) -> np.ndarray:
        """The sum of what the survivors add.

        Args:
            total: (n,), uint64, the sum of their masked answers; it is changed.
            shares: of all members.
            words: how rows are added.

        Raises:
            Unreadable: where shares are missing, or do not fit what their site has signed.
        """
        survived, context = self.survived, self.survived.context
        for name in survived.members:
            keys, given = self.table.keys[name], shares.get(name, {})
            if name in survived.survivors:
                seed = self._secret(name, given, commitment, keys.commitments[survived.slot])
                add_stream(total, self_key(seed, context, name), words, minus=True)
                continue
            private = X25519PrivateKey.from_private_bytes(self._secret(name, given, _public, keys.slots[survived.slot]))
            pairs = (
                (other, agreed(private, self.table.keys[other].slots[survived.slot])) for other in survived.survivors
            )
            add_pairs(total, name, pairs, context, words)  # the other ends of masks that survivors have added
        return total

    def _secret(self, name: str, given: Mapping[str, bytes], public: Callable[[bytes], bytes], signed: bytes) -> bytes:
        if len(given) < self.least:
            raise Unreadable(f"{len(given)} shares of a secret of {name}, and {self.least} are needed")
        for chosen in self._choices(sorted(given)):
            points = tuple(point_of(giver, self.everyone) for giver in chosen)
            if points not in self._weights:
                self._weights[points] = weights_of(points)
            try:
                shares = dict(zip(points, (given[giver] for giver in chosen), strict=True))
                secret = combine(shares, self._weights[points], KEY_BYTES)
            except ValueError:
                continue
            if public(secret) == signed:
                return secret
        raise Unreadable(f"shares of a secret of {name} do not fit what it has signed: a site has given others")

    def _choices(self, givers: list[str]) -> Iterator[list[str]]:
        """Enough givers: the first, and then without each of these, so that one wrong share does no harm."""
        yield givers[: self.least]
        for left_out in givers[: self.least] if len(givers) > self.least else []:
            yield [giver for giver in givers if giver != left_out][: self.least]


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
