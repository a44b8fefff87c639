"""Expected effects of groups that cross the clients: their maximum as a function of the population's numbers.

w(theta) ~ w_0 + J d + d^T B d / 2,    d = theta - theta_0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from hierfl.inference.state import State

#: largest expected effect. Sites refuse to answer at much larger ones, see search.ranges. From there the server takes
#: the step to the maximum.
LARGEST = 50.0
#: largest length of the parabola's last term far from theta_0, over that of the term before
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
        """The expected effects (..., m) at numbers (..., k) near theta_0."""
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
