"""Philox4x32-10 on tensors: a random function of a key and a counter, with no state.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.2. Integer arithmetic
alone makes the words, so they are the same on every device. Normals are Box and Muller's (Annals of Mathematical
Statistics 1958) of two words each; they are the same up to the rounding of logarithm, sine and cosine.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF

#: counters whose words are made at a time: on a CPU what its caches hold, elsewhere what is worth so many launches
AT_ONCE = {"cpu": 2**17}
AT_ONCE_ELSEWHERE = 2**22

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def words(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Words:
    """Four words for every counter and key.

    Args:
        counter: four words, int64 in [0, 2^32), shapes that broadcast with those of the key.
        key: two words, likewise.

    Returns:
        Four int64 tensors in [0, 2^32), of the shape to which all of them broadcast.
    """
    (c0, c1, c2, c3), (k0, k1) = counter, key
    # Products of 32 bits by 32 wrap as signed numbers; a mask leaves the right bits of their upper halves. Lower halves
    # keep what is above them until they are masked, too, since a mask costs as much as a product.
    p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
    c0, c2 = ((p1 >> 32) ^ c1 ^ k0) & LOW, ((p0 >> 32) ^ c3 ^ k1) & LOW
    # The first round's factors are a row's or a counter's alone; from here on everything is each one's.
    c0, c1, c2, c3 = (c.contiguous() for c in torch.broadcast_tensors(c0, p1, c2, p0))
    p0, p1 = torch.empty_like(c0), torch.empty_like(c0)
    for _ in range(ROUNDS - 1):
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
        torch.mul(c0, MULTIPLIERS[0], out=p0)
        torch.mul(c2, MULTIPLIERS[1], out=p1)
        torch.bitwise_right_shift(p1, 32, out=c0).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(LOW)
        torch.bitwise_right_shift(p0, 32, out=c2).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(LOW)
        c1, c3, p0, p1 = p1, p0, c1, c3
    return c0, c1 & LOW, c2, c3 & LOW


def halves(value: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper 32 bits of int64s."""
    return value & LOW, (value >> 32) & LOW


def upper_half(stream: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The upper two words of a stream's counters; filled in on the device, which nothing waits for."""
    first, second = (torch.full((), part, dtype=torch.long, device=device) for part in (stream & LOW, stream >> 32))
    return first, second


def rows_of_words(keys: Tensor, stream: int, first: int, groups: int) -> Words:
    """Words of counters first .. first + groups - 1 of one stream, for each key: (S, groups) each.

    Args:
        keys: (S,), int64.
        stream: the upper 64 bits of the counter, not negative.
        first: the lower 64 bits of the first counter.
        groups: how many counters.
    """
    index = torch.arange(first, first + groups, device=keys.device)
    return words((*halves(index), *upper_half(stream, keys.device)), halves(keys[:, None]))


def unit(word: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform numbers in (0, 1) of words: (word + 1/2) / 2^32, rounded."""
    return word.to(dtype).add_(0.5).mul_(2.0**-32)


def normals(keys: Tensor, stream: int, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """Standard normals number first .. first + count - 1 of one stream, for each key.

    Four of each counter's words, two by two. None is beyond 6.8 in absolute value. Those in float32 are those in
    float64 up to rounding: by 2e-6, and where both of a pair are small by 1e-7 / their distance from 0.

    Args:
        keys: (S,), int64.
        stream: which.
        first: number of the first.
        count: how many of each key.
        dtype: of what is returned.

    Returns:
        (S, count), a view.
    """
    start, end = first // 4, -(-(first + count) // 4)
    values = torch.empty((len(keys), end - start, 4), dtype=dtype, device=keys.device)
    most = AT_ONCE.get(keys.device.type, AT_ONCE_ELSEWHERE)
    across = max(1, min(end - start, most))
    down = max(1, most // across)
    for row in range(0, len(keys), down):
        for group in range(start, end, across):
            some = min(across, end - group)
            made = rows_of_words(keys[row : row + down], stream, group, some)
            _box_muller(made, values[row : row + down, group - start : group - start + some])
    return values.flatten(1)[:, first - 4 * start : first - 4 * start + count]


def _box_muller(made: Words, out: Tensor) -> None:
    for pair in (0, 2):
        radius = unit(made[pair], out.dtype).log_().mul_(-2).sqrt_()
        angle = unit(made[pair + 1], out.dtype).mul_(2 * math.pi)
        torch.mul(radius, angle.cos(), out=out[..., pair])
        torch.mul(radius, angle.sin_(), out=out[..., pair + 1])
