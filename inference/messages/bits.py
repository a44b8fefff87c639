"""Numbers as strings of bits."""

from __future__ import annotations

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


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Non-negative integers (S, m) below 2^bits, in ``bits`` bits each, as bytes (S, ceil(m bits / 8))."""
    places = torch.arange(bits, device=codes.device)
    stream = ((codes[..., None] >> places) & 1).to(torch.uint8).flatten(1)
    stream = torch.nn.functional.pad(stream, (0, -stream.shape[1] % 8)).unflatten(1, (-1, 8))
    return (stream << torch.arange(8, device=codes.device, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def unpack_bits(code: Tensor, bits: int, m: int) -> Tensor:
    """Undoes :func:`pack_bits`: (S, m), int64."""
    stream = (code[..., None] >> torch.arange(8, device=code.device, dtype=torch.uint8)) & 1
    each = stream.flatten(1)[:, : m * bits].unflatten(1, (m, bits)).long()
    return (each << torch.arange(bits, device=code.device)).sum(-1)
