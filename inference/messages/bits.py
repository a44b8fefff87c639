"""Numbers as strings of bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def index_bits(d: int) -> int:
    """Bits that tell d places apart."""
    return max(1, (d - 1).bit_length())


def to_bytes(values: Tensor) -> Tensor:
    """(S, k) numbers as (S, k itemsize) bytes."""
    return values.contiguous().view(torch.uint8)


def from_bytes(code: Tensor, dtype: torch.dtype) -> Tensor:
    """Undoes :func:`to_bytes`."""
    return code.clone(memory_format=torch.contiguous_format).view(dtype)


def _overlaps(bits: int) -> tuple[int, int, list[tuple[int, int, int]]]:
    """So many numbers fill so many bytes exactly; and (number, byte, how far to the right the number goes)."""
    numbers = 8 // math.gcd(bits, 8)
    pairs = [
        (k, byte, 8 * byte - k * bits)
        for k in range(numbers)
        for byte in range(k * bits // 8, ((k + 1) * bits - 1) // 8 + 1)
    ]
    return numbers, numbers * bits // 8, pairs


def _shifted(values: Tensor, right: int) -> Tensor:
    return values >> right if right >= 0 else values << -right


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Non-negative integers (S, m) below 2^bits, in ``bits`` bits each, lowest first: bytes (S, ceil(m bits / 8))."""
    numbers, width, pairs = _overlaps(bits)
    m = codes.shape[1]
    groups = torch.nn.functional.pad(codes, (0, -m % numbers)).unflatten(1, (-1, numbers))
    packed = groups.new_zeros((*groups.shape[:2], width), dtype=torch.uint8)
    for k, byte, right in pairs:  # whole columns at a time: a bit of each number by itself is several times slower
        packed[..., byte] |= (_shifted(groups[..., k], right) & 255).to(torch.uint8)
    return packed.flatten(1)[:, : -(-m * bits // 8)].contiguous()


def unpack_bits(code: Tensor, bits: int, m: int) -> Tensor:
    """Undoes :func:`pack_bits`: (S, m), int64."""
    numbers, width, pairs = _overlaps(bits)
    groups = torch.nn.functional.pad(code, (0, -code.shape[1] % width)).unflatten(1, (-1, width))
    unpacked = torch.zeros((*groups.shape[:2], numbers), dtype=torch.long, device=code.device)
    for k, byte, right in pairs:
        unpacked[..., k] |= _shifted(groups[..., byte].long(), -right)
    return (unpacked & ((1 << bits) - 1)).flatten(1)[:, :m]
