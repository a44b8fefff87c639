"""Unbiased compressors of messages: a client sends fewer bytes, and the server's sum keeps its expectation.

    E C(v) = v,    E |C(v) - v|^2 <= omega |v|^2

What a client sends is a string of bytes, all equally long; what the server sums is what the bytes decode to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from hierfl.errors import UserError

from .forms import Form
from .method import Exchange, Local, Rule, State, form_of


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
        """Of one number."""
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
        return torch.cat([_bytes(norm), _pack(code, self.bits)], 1)

    def decode(self, code: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """See :class:`Compressor`; where the norm was not finite, neither is the vector."""
        norm = _numbers(code[:, : dtype.itemsize], dtype)
        level = _unpack(code[:, dtype.itemsize :], self.bits, d) - self.levels
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
        """k numbers, and where they stand."""
        k = self.kept(d)
        return k * itemsize + -(-k * _width(d) // 8)

    def omega(self, d: int) -> float:
        """d / k - 1."""
        return d / self.kept(d) - 1

    def encode(self, v: Tensor, u: Tensor) -> Tensor:
        """See :class:`Compressor`."""
        places = u.topk(self.kept(v.shape[1]), dim=1).indices
        return torch.cat([_bytes(v.gather(1, places)), _pack(places, _width(v.shape[1]))], 1)

    def decode(self, code: Tensor, d: int, dtype: torch.dtype) -> Tensor:
        """See :class:`Compressor`."""
        k = self.kept(d)
        values = _numbers(code[:, : k * dtype.itemsize], dtype)
        places = _unpack(code[:, k * dtype.itemsize :], _width(d), k)
        return torch.zeros((len(code), d), dtype=dtype, device=code.device).scatter_(1, places, values * (d / k))


@dataclass(frozen=True)
class Compressed:
    """Another rule whose messages are compressed, weights aside.

    Args:
        rule: makes the message and the update.
        compressor: what becomes of the message in between.
    """

    rule: Rule
    compressor: Compressor

    @property
    def differentiates(self) -> bool:
        """As the rule does."""
        return self.rule.differentiates

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """The rule's own: the server checks what the bytes decode to, which fits exact relations no longer."""
        return {k: replace(field, value=None, agrees=None) for k, field in form_of(self.rule, old).items()}

    def message(self, names: Sequence[str], local: Local) -> State:
        """What the clients' bytes decode to."""
        message = self.rule.message(names, local)
        return {k: self._through(k, v, local) if k in names else v for k, v in message.items()}

    def _through(self, name: str, value: Tensor, local: Local) -> Tensor:
        flat = value.flatten(1)
        noise = local.noise("compression", 1).normal(f"compression/{name}", None, flat.shape[1:])
        sent = self.compressor.encode(flat, torch.special.ndtr(noise[0].squeeze(1)))
        return self.compressor.decode(sent, flat.shape[1], flat.dtype).view_as(value)

    def update(self, old: State, total: State, exchange: Exchange) -> State:
        """The rule's own."""
        return self.rule.update(old, total, exchange)


def message_bytes(rule: Rule, names: Sequence[str], message: State) -> int:
    """What one row of a message costs to send."""
    total = 0
    for key, value in message.items():
        numbers, itemsize = value[0].numel(), value.element_size()
        if isinstance(rule, Compressed) and key in names:
            total += rule.compressor.length(numbers, itemsize)
        else:
            total += numbers * itemsize
    return total


def _width(d: int) -> int:
    """Bits that tell d places apart."""
    return max(1, (d - 1).bit_length())


def _bytes(values: Tensor) -> Tensor:
    """(S, k) numbers as (S, k itemsize) bytes."""
    return values.contiguous().view(torch.uint8)


def _numbers(code: Tensor, dtype: torch.dtype) -> Tensor:
    """Undoes :func:`_bytes`."""
    return code.clone(memory_format=torch.contiguous_format).view(dtype)


def _pack(codes: Tensor, bits: int) -> Tensor:
    """Non-negative integers (S, m) below 2^bits, in ``bits`` bits each, as bytes (S, ceil(m bits / 8))."""
    places = torch.arange(bits, device=codes.device)
    stream = ((codes[..., None] >> places) & 1).to(torch.uint8).flatten(1)
    stream = torch.nn.functional.pad(stream, (0, -stream.shape[1] % 8)).unflatten(1, (-1, 8))
    return (stream << torch.arange(8, device=codes.device, dtype=torch.uint8)).sum(-1, dtype=torch.uint8)


def _unpack(code: Tensor, bits: int, m: int) -> Tensor:
    """Undoes :func:`_pack`: (S, m), int64."""
    stream = (code[..., None] >> torch.arange(8, device=code.device, dtype=torch.uint8)) & 1
    each = stream.flatten(1)[:, : m * bits].unflatten(1, (m, bits)).long()
    return (each << torch.arange(bits, device=code.device)).sum(-1)


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
