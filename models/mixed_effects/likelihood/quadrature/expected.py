"""Where the maximum in effects of groups that cross the clients is expected, as a function of the population's numbers.

w(theta) ~ w_0 + J d + d^T B d / 2,    d = theta - theta_0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hierfl.inference.state import State

#: no effect is expected further from zero: sites answer about none so large (search.ranges), and the step from there to
#: the maximum is the server's
LARGEST = 50.0
#: far from theta_0 the parabola's last term is no longer than this share of the one before
LARGEST_BEND = 0.5


@dataclass(frozen=True)
class Expected:
    """What is known of it.

    Attributes:
        at: theta_0, (k,).
        w: w_0, (m,).
        slope: J, (m, k).
        bend: B, (m, k, k).
    """

    at: Tensor
    w: Tensor
    slope: Tensor
    bend: Tensor

    @classmethod
    def read(cls, k: int, m: int, state: Mapping[str, Tensor]) -> Expected:
        """What :meth:`state` has written; before, effects are expected at zero."""
        if "crossed.at" in state:
            return cls(**{f.name: state[f"crossed.{f.name}"] for f in fields(cls)})
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in ((k,), (m,), (m, k), (m, k, k))))

    def state(self) -> State:
        """All of it by name."""
        return {f"crossed.{f.name}": getattr(self, f.name) for f in fields(self)}

    def near(self, numbers: Tensor) -> Tensor:
        """At numbers (..., k), (..., m)."""
        linear, bent = self._terms(numbers)
        return (self.w + linear + bent).clamp(-LARGEST, LARGEST)

    def effects(self, numbers: Tensor) -> Tensor:
        """The same at numbers that may be far away: the last term is bounded by the one before."""
        linear, bent = self._terms(numbers)
        most = LARGEST_BEND * linear.abs()
        return (self.w + linear + bent.clamp(-most, most)).clamp(-LARGEST, LARGEST)

    def _terms(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        step = numbers - self.at
        linear = step @ self.slope.mT
        return linear, 0.5 * torch.einsum("...a,mab,...b->...m", step, self.bend, step)
