"""How guide sites get their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .empirical_draws import EmpiricalDraws
from .reparametrise import reparametrise
from .sigma_points import Noise

Draw = Callable[[str, Any, bool], Tensor]


def draw_with(noise: Noise | None) -> Draw:
    """How guide sites get their values: from client-keyed noise, or at their centre where there is none."""

    def draw(name: str, fn: Any, in_data: bool) -> Tensor:
        if isinstance(fn, EmpiricalDraws):
            return fn.mean if noise is None else fn.some(noise.particles)
        if noise is None:
            return reparametrise(fn, None, name)
        width = fn.batch_shape[-1] if in_data else None
        return reparametrise(fn, lambda: noise.normal(name, width, fn.event_shape), name)

    return draw
