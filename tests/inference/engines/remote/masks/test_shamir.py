"""Shares: so many tell the secret, and fewer say nothing of it."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from hierfl.inference.engines.remote.masks.shamir import PRIME, SHARE_BYTES, combine, share, values_at, weights_of

SECRET = bytes(range(32))


@pytest.mark.parametrize(("sites", "least"), [(3, 3), (4, 3), (7, 5), (20, 14)])
def test_so_many_shares_tell_the_secret(sites: int, least: int) -> None:
    points = list(range(1, sites + 1))
    shares = dict(zip(points, share(SECRET, points, least, b"k" * 32), strict=True))
    assert all(len(value) == SHARE_BYTES for value in shares.values())
    assert list(shares.values()) == share(SECRET, points, least, b"k" * 32)  # a killed site deals the same ones
    assert set(shares.values()).isdisjoint(share(SECRET, points, least, b"l" * 32))
    for chosen in itertools.islice(itertools.combinations(reversed(points), least), 20):
        assert combine({p: shares[p] for p in chosen}, weights_of(chosen), 32) == SECRET
    few = points[: least - 1]
    with pytest.raises(ValueError, match="no secret"):
        combine({p: shares[p] for p in few}, weights_of(few), 32)


def test_fewer_shares_are_the_same_whatever_the_secret() -> None:
    """Exactly, on a small field: over all polynomials each pair of shares occurs equally often for each secret."""
    prime, points = 7, (2, 5)
    for secret in range(prime):
        seen = Counter(
            tuple(values_at(points, secret, chosen, prime)) for chosen in itertools.product(range(prime), repeat=2)
        )
        assert len(seen) == prime**2
        assert set(seen.values()) == {1}


def test_fewer_shares_fit_any_secret() -> None:
    """In the field that is used: a polynomial through two of three shares and any secret is there."""
    shares = [int.from_bytes(value, "big") for value in share(SECRET, [1, 2, 3], 3, b"k" * 32)]
    for secret in (0, 1, 2**256 - 1, PRIME - 1):
        # the third share that goes with the first two and this secret, by interpolation at 0, 1, 2
        third = (secret - 3 * shares[0] + 3 * shares[1]) % PRIME
        points = {point: value.to_bytes(66, "big") for point, value in ((1, shares[0]), (2, shares[1]), (3, third))}
        assert int.from_bytes(combine(points, weights_of([1, 2, 3]), 66), "big") == secret


def test_weights_are_those_of_any_prime() -> None:
    prime = 101
    for points in ([1, 2, 3], [9, 4, 100, 7]):
        values = values_at(points, 42, [5, 77], prime)
        assert sum(v * w for v, w in zip(values, weights_of(points, prime), strict=True)) % prime == 42
