"""Adam's steps up a bound (Kingma and Ba, 2015)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: how much of the averages of gradients and of their squares is kept in a step
BETAS = (0.9, 0.99)
#: gradients below this move nothing
EPSILON = 1e-8
#: a number of a gradient counts as at most so many times the root mean square of those before: draws of a flow may
#: reach far, and one gradient of 1e9 would end all steps for thousands of rounds
LARGEST = 10.0


@dataclass(frozen=True)
class Adam:
    """Averages so far.

    Attributes:
        first, second: of gradients and of their squares, (..., n).
        steps: so far, (..., 1).
    """

    first: Tensor
    second: Tensor
    steps: Tensor

    @classmethod
    def begin(cls, like: Tensor) -> Adam:
        """The state before the first step."""
        return cls(torch.zeros_like(like), torch.zeros_like(like), like.new_zeros(*like.shape[:-1], 1))

    def step(self, gradient: Tensor, rate: Tensor | float) -> tuple[Adam, Tensor]:
        """The state after one more gradient, and the step to take; a gradient that is not finite moves nothing."""
        finite = gradient.isfinite().all(-1, keepdim=True)
        most = LARGEST * (self.second / (1 - BETAS[1] ** self.steps)).sqrt()  # 0 / 0 before the first step
        gradient = torch.where(finite, torch.where(most > 0, gradient.clamp(-most, most), gradient), 0.0)
        first = BETAS[0] * self.first + (1 - BETAS[0]) * gradient
        second = BETAS[1] * self.second + (1 - BETAS[1]) * gradient.square()
        steps = self.steps + 1
        mean, square = first / (1 - BETAS[0] ** steps), second / (1 - BETAS[1] ** steps)
        move = rate * mean / (square.sqrt() + EPSILON)
        return Adam(first, second, steps), torch.where(finite, move, 0.0)
