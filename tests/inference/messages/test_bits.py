"""Numbers as strings of bits, against Python's own integers of any length."""

from __future__ import annotations

import pytest
import torch

from hierfl.inference.messages.bits import pack_bits, unpack_bits


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 7, 8, 9, 10, 12, 16, 17, 20, 25])
def test_numbers_stand_one_after_the_other_the_lowest_bit_first(bits: int) -> None:
    for m in (0, 1, 2, 3, 7, 8, 9, 31):
        codes = torch.randint(0, 2**bits, (3, m), generator=torch.Generator().manual_seed(m))
        codes[:, :1] = 2**bits - 1
        packed = pack_bits(codes, bits)
        for row, packed_row in zip(codes.tolist(), packed, strict=True):
            whole = sum(code << (bits * k) for k, code in enumerate(row))
            assert bytes(packed_row.tolist()) == whole.to_bytes(-(-m * bits // 8), "little")
        assert packed.dtype is torch.uint8
        assert packed.is_contiguous()
        assert torch.equal(unpack_bits(packed, bits, m), codes)
