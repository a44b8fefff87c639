"""Integers of several words, added with carries: a sum of them is one integer, and shows no carry of its terms.

Digits that are added each by itself show more than their sum: 0.5 + 0.5 has other digits than 1 + 0. So a number is one
integer modulo 2^64, 2^128 or 2^192, and so is its mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ....messages.fixed_point import DIGIT, FixedPoint, carried

#: bits of a word
WORD = 64


@dataclass(frozen=True)
class Words:
    """A row of integers, each of some words, the lowest first.

    Attributes:
        parts: (integers, words of each), one after the other.
    """

    parts: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Words of a row."""
        return sum(count * width for count, width in self.parts)

    @cached_property
    def _joined(self) -> np.ndarray:
        """(size,), True where a carry goes on to the next word."""
        rows = [np.tile(np.arange(width) < width - 1, count) for count, width in self.parts]
        return np.concatenate(rows) if rows else np.zeros(0, bool)

    def add(self, total: np.ndarray, row: np.ndarray, *, minus: bool = False) -> None:
        """Adds a row to another one, or takes it away, in place.

        Args:
            total, row: (size,), uint64.
            minus: whether it is taken away.
        """
        if minus:
            carry = total < row
            np.subtract(total, row, out=total)
        else:
            np.add(total, row, out=total)
            carry = total < row
        for _ in range(max((width for _, width in self.parts), default=1) - 1):
            moved = np.zeros_like(carry)
            np.logical_and(carry[:-1], self._joined[:-1], out=moved[1:])
            if minus:
                carry = moved & (total == 0)
                total -= moved
            else:
                total += moved
                carry = moved & (total == 0)

    def added(self, rows: Iterable[np.ndarray]) -> np.ndarray:
        """The sum of rows, (size,), uint64."""
        total = np.zeros(self.size, np.uint64)
        for row in rows:
            self.add(total, row)
        return total


def packed(point: FixedPoint, digits: torch.Tensor) -> np.ndarray:
    """Numbers as integers of :attr:`~hierfl.inference.messages.fixed_point.FixedPoint.words` words.

    Args:
        point: how they are held.
        digits: int64 (limbs, *shape).

    Returns:
        (numbers * words,), uint64: two's complement.
    """
    made = digits.reshape(len(digits), -1).numpy()
    if point.limbs == 1:
        return made[0].view(np.uint64).copy()
    out = np.zeros((made.shape[1], point.words), np.uint64)
    for k, digit in enumerate(carried(made)):  # the last one has the sign
        word, bit = divmod(DIGIT * k, WORD)
        digit_bits = digit.view(np.uint64)
        out[:, word] |= digit_bits << np.uint64(bit)
        if bit + DIGIT > WORD and word + 1 < point.words:
            out[:, word + 1] |= digit_bits >> np.uint64(WORD - bit)
    return out.reshape(-1)


def unpacked(point: FixedPoint, row: np.ndarray) -> torch.Tensor:
    """Undoes :func:`packed`: int64 (limbs, numbers)."""
    if point.limbs == 1:
        return torch.from_numpy(row.view(np.int64).copy())[None]
    words = row.reshape(-1, point.words)
    digits = []
    for k in range(point.limbs + 1):
        word, bit = divmod(DIGIT * k, WORD)
        digit = words[:, word] >> np.uint64(bit)
        if k == point.limbs:  # with the sign
            digits.append(words[:, word].view(np.int64) >> bit)
            continue
        if bit + DIGIT > WORD:
            digit = digit | (words[:, word + 1] << np.uint64(WORD - bit))
        digits.append((digit & np.uint64((1 << DIGIT) - 1)).view(np.int64))
    digits[-2] = digits[-2] + (digits[-1] << DIGIT)
    return torch.from_numpy(np.stack(digits[:-1]))
