"""Numbers as integers whose sums are exact: in any order, on any machine, and under masks.

A number is split into digits of 40 bits. Each digit is an int64 of its own, a limb, so that sums of digits need no
carry. The highest limb holds what is left, up to 2^62. A sum is put together once, and rounded once. Sums of digits
show more than the sum, so that masked numbers are added with carries:
:mod:`hierfl.inference.engines.remote.masks.words`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

#: bits of a digit
DIGIT = 40
_BASE = 1 << DIGIT
#: a number that is as good as infinite: a height where a model is impossible
BOUNDLESS = 1e99
#: what the sum of one such number, and others that are none, is given as
OVERFLOW_VALUE = 2e100


@dataclass(frozen=True)
class FixedPoint:
    """How numbers of one dtype become integers.

    Attributes:
        dtype: of the numbers.
        limbs: int64 integers of one number.
        fraction: bits after the point; 0 for integers.
    """

    dtype: torch.dtype
    limbs: int
    fraction: int

    @classmethod
    def for_dtype(cls, dtype: torch.dtype) -> FixedPoint:
        """The format of a dtype: 4 limbs and 100 bits of float64, 2 and 40 of other floats, 1 limb of integers."""
        if dtype == torch.float64:
            return cls(dtype, 4, 100)
        return cls(dtype, 2, 40) if dtype.is_floating_point else cls(dtype, 1, 0)

    @property
    def words(self) -> int:
        """Words of 64 bits of one number under masks: 3 of float64, 2 of other floating-point numbers, else 1."""
        return -(-(DIGIT * (self.limbs - 1) + 64) // 64)

    def largest(self, sites: int) -> float:
        """The largest magnitude that each of so many sites may add, at least 2^61 / (8 sites^2) of the highest limb.

        Of float64 that is 1e19 for two hundred sites, of float32 and of integers 1e13.
        """
        return self._boundless(sites) / (4.0 * sites)

    def _boundless(self, sites: int) -> float:
        """The substitute for a number that is as good as infinite: more than twice what all sites together may add."""
        top = 61 - max(sites - 1, 1).bit_length()  # J such numbers stay below 2^61 in the highest limb
        return 2.0 ** (top + DIGIT * (self.limbs - 1) - self.fraction)

    def fits(self, values: Tensor, sites: int) -> bool:
        """Whether all numbers are finite and in range; a number as good as infinite is, where the dtype has it.

        Args:
            values: any shape, of the dtype.
            sites: over how many it will be summed.
        """
        if not values.dtype.is_floating_point:
            integers = values.to(torch.int64)
            most = int(self.largest(sites))
            return bool(((integers <= most) & (integers >= -most)).all())
        if self.dtype != torch.float64:  # of a number that is none the largest is none
            return not values.numel() or float(values.detach().abs().max()) <= self.largest(sites)
        size = values.detach().abs()
        return bool(((size <= self.largest(sites)) | (size.isfinite() & (size >= BOUNDLESS))).all())

    def encode(self, values: Tensor, sites: int) -> Tensor:
        """Numbers as integers; a number between two integers becomes the nearer one, the even one of a tie.

        Args:
            values: any shape, of the dtype.
            sites: over how many it will be summed.

        Returns:
            (limbs, *shape), int64, on the CPU; the lowest limb first.

        Raises:
            ValueError: for numbers that do not fit, see :meth:`fits`.
        """
        if not self.fits(values, sites):
            raise ValueError("numbers are not finite, or out of the range of a sum")
        values = values.detach().cpu()
        if not self.fraction:
            return values.to(torch.int64)[None].clone()
        rest = values.to(torch.float64).numpy().copy()
        if self.dtype == torch.float64:
            rest = np.where(np.abs(rest) >= BOUNDLESS, np.copysign(self._boundless(sites), rest), rest)
        out = np.empty((self.limbs, *rest.shape), np.int64)
        for limb in range(self.limbs - 1, 0, -1):  # each step is exact: what is taken away are the leading bits
            weight = 2.0 ** (DIGIT * limb - self.fraction)
            digit = np.trunc(rest / weight)  # a negative number's digits are negative
            out[limb] = digit
            digit *= weight
            rest -= digit
        rest *= 2.0**self.fraction
        out[0] = np.rint(rest)
        return torch.from_numpy(out)

    def decode(self, sums: Tensor, sites: int) -> Tensor:
        """What the numbers add up to, rounded once to float64, and to a smaller dtype after that.

        Args:
            sums: (limbs, *shape), int64: sums of what :meth:`encode` gave.
            sites: as it was given.

        Returns:
            (*shape), of the dtype; booleans as int64.
        """
        if not self.fraction:
            return sums[0].cpu().to(torch.int64 if self.dtype == torch.bool else self.dtype)
        limbs = sums.cpu().numpy()
        negative = carried(limbs)[-1] < 0
        digits = carried(np.where(negative, -limbs, limbs))
        size = _rounded(digits) * 2.0**-self.fraction
        bound = self._boundless(sites)
        if self.dtype == torch.float64:
            size = np.where(size > 0.5 * bound, np.maximum(np.rint(size / bound), 1.0) * OVERFLOW_VALUE, size)
        return torch.from_numpy(np.where(negative, -size, size)).to(self.dtype)


def carried(limbs: np.ndarray) -> np.ndarray:
    """Digits of 0 to 2^40 - 1 with the same value, and one more above them with the sign."""
    out = np.empty((len(limbs) + 1, *limbs.shape[1:]), np.int64)
    carry = np.zeros(limbs.shape[1:], np.int64)
    for power, limb in enumerate(limbs):
        # A limb may be close to 2^63: its digit and its carry are taken before the sum.
        low = (limb & (_BASE - 1)) + (carry & (_BASE - 1))
        out[power] = low & (_BASE - 1)
        carry = (limb >> DIGIT) + (carry >> DIGIT) + (low >> DIGIT)
    out[-1] = carry
    return out


def _rounded(digits: np.ndarray) -> np.ndarray:
    """Integers from digits that are not negative, rounded once, to the nearest float64 or the even one of a tie."""
    shape = digits.shape[1:]
    flat = digits.reshape(len(digits), -1)
    padded = np.concatenate([np.zeros((3, flat.shape[1]), np.int64), flat])
    top = len(padded) - 1 - np.argmax((padded[::-1] != 0), axis=0)
    top = np.where(padded.any(0), top, 3)
    columns = np.arange(flat.shape[1])
    first, second, third, fourth = (padded[top - back, columns] for back in range(4))
    fifth = np.where(np.arange(len(padded))[:, None] < top - 3, padded, 0).any(0)
    # first and second add up to high + low without an error; what follows decides between neighbours, of which
    # only whether anything is left matters below 2^-24
    high_part, two = first.astype(np.float64) * float(_BASE), second.astype(np.float64)
    high = high_part + two
    low = two - (high - high_part)
    rest = (low.astype(np.int64) << 24) + (third >> 16)
    left = ((third & 0xFFFF) | fourth) != 0
    rest |= (left | fifth).astype(np.int64)
    value = high + rest.astype(np.float64) * 2.0**-24
    return (value * 2.0 ** (DIGIT * (top - 4.0))).reshape(shape)
