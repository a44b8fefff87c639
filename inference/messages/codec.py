"""Unbiased compressors of messages: a client sends fewer bytes, and the server's sum keeps its expectation.

    E C(v) = v,    E |C(v) - v|^2 <= omega |v|^2

What a client sends is a string of bytes, all equally long; what the server sums is what the bytes decode to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hierfl.errors import UserError

from .bits import from_bytes, index_bits, pack_bits, to_bytes, unpack_bits


class Compressor(Protocol):
    """A pair of maps between vectors and bytes."""

    def length(self, d: int, itemsize: int) -> int:
        """Bytes of a vector of d numbers of ``itemsize`` bytes each."""
        ...

    def omega(self, d: int) -> float:
        """The bound on the relative variance."""
        ...

    def encode(self, v: Tensor, u: Tensor) -> Tensor:
        """Vectors (S, d) and uniforms (S, d) to bytes (S, length); uint8."""
        ...

    def decode(self, code: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """Bytes back to vectors (S, d)."""
        ...


@dataclass(frozen=True)
class Quantise:
    """Stochastic quantisation: |v| times a level k / s for each number, rounded up or down at random.

    QSGD (Alistarh et al., NeurIPS 2017, Sec. 3.1; levels in fixed width, not in Elias code): the norm, and for each
    number one of 2 s + 1 signed levels. omega = min(d / s^2, sqrt(d) / s).

    Args:
        levels: s.
    """

    levels: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 2**15:
            raise UserError(f"quantisation needs 1 to 32768 levels, not {self.levels}")

    @property
    def bits(self) -> int:
        """The bits of one number."""
        return (2 * self.levels).bit_length()

    def length(self, d: int, itemsize: int) -> int:
        """The norm, and d levels."""
        return itemsize + -(-d * self.bits // 8)

    def omega(self, d: int) -> float:
        """Lemma 3.1 of the paper."""
        return min(d / self.levels**2, d**0.5 / self.levels)

    def encode(self, v: Tensor, u: Tensor) -> Tensor:
        """See :class:`Compressor`."""
        norm = torch.linalg.vector_norm(v, dim=1, keepdim=True)
        usable = (norm > 0) & norm.isfinite()
        share = torch.where(usable, v.abs() / norm, 0.0)
        level = (share * self.levels + u).floor().clamp(max=self.levels)
        code = (level * v.sign().nan_to_num(0.0)).long() + self.levels
        return torch.cat([to_bytes(norm), pack_bits(code, self.bits)], 1)

    def decode(self, code: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """See :class:`Compressor`; where the norm was not finite, neither is the vector."""
        norm = from_bytes(code[:, : dtype.itemsize], dtype)
        level = unpack_bits(code[:, dtype.itemsize :], self.bits, d) - self.levels
        return norm * level / self.levels


@dataclass(frozen=True)
class Sparsify:
    """Random sparsification: some of the numbers, chosen without replacement, times d / k.

    Which ones they are is sent with them. omega = d / k - 1 (Wangni et al., NeurIPS 2018, with equal probabilities).

    Args:
        share: k / d, rounded up to a whole k.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(f"sparsification keeps a share above 0 and up to 1, not {self.share}")

    def kept(self, d: int) -> int:
        """k."""
        return max(1, min(d, -int(-self.share * d // 1)))

    def length(self, d: int, itemsize: int) -> int:
        """k numbers, and their positions."""
        k = self.kept(d)
        return k * itemsize + -(-k * index_bits(d) // 8)

    def omega(self, d: int) -> float:
        """d / k - 1."""
        return d / self.kept(d) - 1

    def encode(self, v: Tensor, u: Tensor) -> Tensor:
        """See :class:`Compressor`."""
        places = u.topk(self.kept(v.shape[1]), dim=1).indices
        return torch.cat([to_bytes(v.gather(1, places)), pack_bits(places, index_bits(v.shape[1]))], 1)

    def decode(self, code: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """See :class:`Compressor`."""
        k = self.kept(d)
        values = from_bytes(code[:, : k * dtype.itemsize], dtype)
        # Bytes that no encoder wrote may name places beyond the last.
        places = unpack_bits(code[:, k * dtype.itemsize :], index_bits(d), k).clamp_max(d - 1)
        return torch.zeros((len(code), d), dtype=dtype, device=code.device).scatter_(1, places, values * (d / k))


def parse_compressor(spec: str) -> Compressor | None:
    """What ``quantise:LEVELS`` or ``sparsify:SHARE`` names; None for "none".

    Raises:
        UserError: for anything else.
    """
    if spec == "none":
        return None
    kind, _, number = spec.partition(":")
    makers: dict[str, Callable[[str], Compressor]] = {
        "quantise": lambda text: Quantise(int(text)),
        "sparsify": lambda text: Sparsify(float(text)),
    }
    if kind in makers:
        try:
            return makers[kind](number)
        except UserError:
            raise
        except ValueError:
            pass  # no number: said below
    raise UserError(f"compress is none, quantise:LEVELS or sparsify:SHARE, as in quantise:16; not {spec!r}")
