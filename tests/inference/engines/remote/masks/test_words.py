"""Integers of several words are added with carries, modulo what the words hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hierfl.inference.engines.remote.masks.words import Words, packed, unpacked
from hierfl.inference.messages.fixed_point import FixedPoint

WORDS = Words(((2, 1), (3, 3), (4, 2)))


def integers(row: np.ndarray) -> list[int]:
    """What a row holds."""
    values, at = [], 0
    for count, width in WORDS.parts:
        for _ in range(count):
            values.append(sum(int(word) << (64 * k) for k, word in enumerate(row[at : at + width])))
            at += width
    return values


@pytest.mark.parametrize("kind", ["random", "carries"])
def test_sums_and_differences_are_those_of_integers(kind: str) -> None:
    draw, edges = np.random.default_rng(0), np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    sizes = [2**64] * 2 + [2**192] * 3 + [2**128] * 4
    for _ in range(200):
        first, other = (
            draw.integers(0, 2**64, WORDS.size, np.uint64) if kind == "random" else draw.choice(edges, WORDS.size)
            for _ in range(2)
        )
        for minus in (False, True):
            total = first.copy()
            WORDS.add(total, other, minus=minus)
            wanted = [
                (a - b if minus else a + b) % size
                for a, b, size in zip(integers(first), integers(other), sizes, strict=True)
            ]
            assert integers(total) == wanted


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_sums_of_packed_numbers_are_sums_of_numbers(dtype: torch.dtype) -> None:
    """Of both signs and many sizes, masked and not."""
    point, sites = FixedPoint.for_dtype(dtype), 7
    made = torch.Generator().manual_seed(0)
    values = (torch.randn((sites, 50), generator=made, dtype=torch.float64) * 10.0 ** torch.arange(-5, 5).repeat(5)).to(
        dtype
    )
    digits = [point.encode(row, sites) for row in values]
    words = Words(((50, point.words),))
    mask = np.random.default_rng(1).integers(0, 2**64, words.size, np.uint64)
    total = words.added(packed(point, encoded) for encoded in digits)
    words.add(total, mask)
    words.add(total, mask, minus=True)
    decoded = point.decode(unpacked(point, total), sites)
    assert torch.equal(decoded, point.decode(torch.stack(digits).sum(0), sites))
    for encoded in digits:
        assert torch.equal(point.decode(unpacked(point, packed(point, encoded)), sites), point.decode(encoded, sites))
