"""Derivatives of a function of k numbers from its values at points around one.

    df/da ~ (f(+a) - f(-a)) / 2 h,    d2f/dadb ~ (f(+a+b) + f(-a-b) - f(+a) - f(-a) - f(+b) - f(-b) + 2 f) / 2 h^2

both but for terms in h^2.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: h, of numbers in the design's units: standard errors of a few thousandths and more are well above it
STEP = 0.005


def size(k: int) -> int:
    """How many points there are, T."""
    return 1 + 2 * k + k * (k - 1)


def stencil(k: int) -> Tensor:
    """Steps from the middle, which is the first, (T, k)."""
    single = STEP * torch.eye(k, dtype=torch.float64)
    first, second = torch.triu_indices(k, k, 1)
    both = single[first] + single[second]
    return torch.cat([0 * single[:1] if k else single.new_zeros(1, 0), single, -single, both, -both])


def derivatives(values: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Value (...), slope (..., k) and second derivatives (..., k, k), of values (T, ...) at the stencil's points."""
    middle, up, down, both, neither = values.split([1, k, k, k * (k - 1) // 2, k * (k - 1) // 2])
    slope = (up - down) / (2 * STEP)
    bend = values.new_zeros(k, k, *values.shape[1:])
    places = torch.arange(k)
    bend[places, places] = (up + down - 2 * middle) / STEP**2
    first, second = torch.triu_indices(k, k, 1)
    alone = up + down
    across = (both + neither - alone[first] - alone[second] + 2 * middle) / (2 * STEP**2)
    bend[first, second] = across
    bend[second, first] = across
    return middle[0], slope.movedim(0, -1), bend.movedim((0, 1), (-2, -1))
