"""What a client's message must look like: its keys, shapes and dtypes, and what its numbers may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor


@dataclass(frozen=True)
class Field:
    """What each client's message holds under one key. A message of another form is dropped.

    Attributes:
        shape: of one client's tensor.
        dtype: exactly this one.
        holds: what must be true of its numbers beside being finite, from (S, *shape) to booleans (S, ...), all of
            which must be True; None for nothing.
        scaled: whether it is a value on the scale of the broadcast one of the same name, times ``weight``: then its
            largest number is bounded relative to that one's (``max_message_ratio``).
        weight: from a message to the weights inside this tensor, (S, *the first dimensions of shape); None for one.
        value: from a message to what is bounded, (S, ...), where that is not the tensor over its weights.
        agrees: what must be true of the message as a whole, from it to booleans (S, ...); None for nothing.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    holds: Callable[[Tensor], Tensor] | None = None
    scaled: bool = False
    weight: Callable[[Mapping[str, Tensor]], Tensor] | None = None
    value: Callable[[Mapping[str, Tensor]], Tensor] | None = None
    agrees: Callable[[Mapping[str, Tensor]], Tensor] | None = None


#: a message's form: exactly these keys
Form = dict[str, Field]


def values_form(old: Mapping[str, Tensor], *, scaled: bool = False, weight: str = "") -> Form:
    """Fields of shared values themselves.

    Args:
        old: the values, {name: (*shape)}.
        scaled: whether what is sent is on the scale of the values.
        weight: the key of the weights (S, ...) that are inside; empty for none.
    """
    inside = itemgetter(weight) if weight else None
    return {name: Field(tuple(v.shape), v.dtype, scaled=scaled, weight=inside) for name, v in old.items()}


def positive(value: Tensor) -> Tensor:
    """Every number is above zero."""
    return value > 0


def not_negative(value: Tensor) -> Tensor:
    """No number is below zero."""
    return value >= 0


def some_weight(weight: Tensor) -> Tensor:
    """Of weights (S, C) none is below zero, and at least one is above."""
    return (weight >= 0) & (weight.amax(-1, keepdim=True) > 0)


def beside(
    old: Mapping[str, Tensor], shape: tuple[int, ...] = (), holds: Callable[[Tensor], Tensor] = positive
) -> Field:
    """A field beside the values and of their dtype; by default one number above zero."""
    return Field(shape, next(iter(old.values())).dtype, holds)
