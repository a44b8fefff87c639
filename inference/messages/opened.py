"""Messages that are added up in fixed point, and their sums as numbers again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .fixed_point import FixedPoint
from .form import Field, Form
from .sums import Sums


def clamped(value: Tensor, field: Field, sites: int) -> Tensor:
    """What fixed point can hold of a message: numbers out of range say "impossible", where the field has such numbers.

    Args:
        value: (..., *shape).
        field: that it is of.
        sites: J.
    """
    if not field.impossible:
        return value
    beyond = value.isfinite() & (value.abs() > FixedPoint.for_dtype(value.dtype).largest(sites))
    return torch.where(beyond, value.sign() * field.impossible, value)


def opened_sums(sums: Sums, forms: Mapping[str, Form], sites: int) -> Sums:
    """What a round has brought, added up as digits, as numbers.

    Args:
        sums: whose totals are digits, int64 (limbs, *shape).
        forms: {group: form} of a message as it is added up.
        sites: J.
    """
    totals = {
        name: {
            key: FixedPoint.for_dtype(forms[name][key].dtype).decode(v, sites).to(v.device) for key, v in total.items()
        }
        for name, total in sums.totals.items()
    }
    return replace(sums, totals=totals)


def masked_bytes(forms: Mapping[str, Form]) -> int:
    """The bytes of one client's masked message: words, and three counts.

    Args:
        forms: {group: form} of what is sent.
    """
    fields = [field for form in forms.values() for field in form.values()]
    return 8 * (3 + sum(FixedPoint.for_dtype(field.dtype).words * field.numel for field in fields))
