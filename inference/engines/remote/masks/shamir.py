"""Shamir's secret sharing: a secret as shares of which so many tell it, and fewer say nothing.

A share is the value of a polynomial over the integers modulo the prime 2^521 - 1. Its constant is the secret, its other
coefficients are uniform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

#: a Mersenne prime
PRIME = 2**521 - 1
#: of a share
SHARE_BYTES = 66
#: of a coefficient before it is reduced: it is uniform but for 2^-71
_DRAWN = 74


def share(secret: bytes, points: Sequence[int], least: int, key: bytes) -> list[bytes]:
    """Shares of a secret.

    Args:
        secret: at most 64 bytes.
        points: one number from 1 for each share.
        least: how many shares tell the secret.
        key: 32 bytes, used for this alone: the same shares can be made again.

    Returns:
        66 bytes for each point.
    """
    drawn = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(_DRAWN * (least - 1)))
    coefficients = [int.from_bytes(drawn[at : at + _DRAWN], "big") % PRIME for at in range(0, len(drawn), _DRAWN)]
    return [
        value.to_bytes(SHARE_BYTES, "big") for value in values_at(points, int.from_bytes(secret, "big"), coefficients)
    ]


def values_at(points: Sequence[int], constant: int, coefficients: Sequence[int], prime: int = PRIME) -> list[int]:
    """The values of the polynomial ``constant + coefficients[0] x + coefficients[1] x^2 + ...`` modulo a prime."""
    values = []
    for point in points:
        value = 0
        for coefficient in reversed((constant, *coefficients)):  # reduced once: points are small
            value = value * point + coefficient
        values.append(value % prime)
    return values


def weights_of(points: Sequence[int], prime: int = PRIME) -> list[int]:
    """The weights of the shares at these points: the weighted shares add up to the secret."""
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above, below = above * other % prime, below * (other - point) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return weights


def combine(shares: Mapping[int, bytes], weights: Sequence[int], size: int) -> bytes:
    """The secret.

    Args:
        shares: {point: share}, as many as tell it.
        weights: of :func:`weights_of` the same points, in this order.
        size: bytes of the secret.

    Raises:
        ValueError: for shares that are of no secret of this size.
    """
    values = (int.from_bytes(value, "big") for value in shares.values())
    secret = sum(value * weight for value, weight in zip(values, weights, strict=True)) % PRIME
    if secret >> (8 * size):
        raise ValueError("shares are of no secret")
    return secret.to_bytes(size, "big")
