"""A Gaussian posterior to which clients send what changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...clients.chunk import ClientChunk
from ...messages.form import Form, values_form
from ...state import State
from .base import AggregationContext


@dataclass(frozen=True)
class GaussianIncrements:
    """N(mu, diag(Lambda)^-1), whose natural parameters move by the sum of the clients' increments (parallel EP).

    Of dh_j and dLambda_j, the increments of h = Lambda mu and Lambda, a client sends r_j = dh_j - dLambda_j mu and
    dLambda_j, damped already: then

        Lambda <- Lambda + sum dLambda_j,    mu <- mu + sum r_j / Lambda

    and no difference of large numbers is taken. Where a precision would not be above zero, both stay as they are.

    Args:
        mean, precision: the shared values mu and Lambda, (d,).
        damping: the shared number by which clients damp: min(1, step / |A|) of the round before, as the server sets it.
        step: of all together.
        increments: of each row, r_j and dLambda_j, (S, d).
    """

    mean: str
    precision: str
    damping: str
    step: float
    increments: Callable[[ClientChunk], tuple[Tensor, Tensor]]
    sends_gradients: ClassVar[bool] = False

    @property
    def moving(self) -> tuple[str, ...]:
        """The mean, by which it is measured how far a round has moved."""
        return (self.mean,)

    @property
    def growing(self) -> tuple[str, ...]:
        """The precision, to which each row of the clients adds."""
        return (self.precision,)

    def form(self, old: Mapping[str, Tensor]) -> Form:
        """Increments, which have no scale of their own, and any sign."""
        return values_form({name: old[name] for name in (self.mean, self.precision)})

    def message(self, names: Sequence[str], chunk: ClientChunk) -> State:
        """Both increments."""
        shift, precision = self.increments(chunk)
        return {self.mean: shift, self.precision: precision}

    def update(self, old: State, total: State, context: AggregationContext) -> State:
        """Add, and say by how much the next round's increments are damped."""
        mean, precision = old[self.mean], old[self.precision] + total[self.precision]
        positive = precision > 0
        shift = total[self.mean] / torch.where(positive, precision, 1)
        return {
            self.mean: torch.where(positive, mean + shift, mean),
            self.precision: torch.where(positive, precision, old[self.precision]),
            self.damping: (self.step / context.reported).clamp_max(1).to(old[self.damping]),
        }
