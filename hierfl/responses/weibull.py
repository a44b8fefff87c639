"""Weibull times: the integral of the hazard of a row with eta = 0 is t^k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.formula.units import INTERCEPT
from .base import Response, Rows
from .times import Survival, TimeResponse


class Weibull(Survival):
    """H_0(t) = t^k exp((k - 1) c): c, about the logarithm of a rate, lets k change and the intercept stay.

    Args:
        eta, event: see :class:`.times.Survival`.
        log_k: broadcast to eta.
        c: see above.
    """

    def __init__(self, eta: Tensor, event: Tensor | None, log_k: Tensor, c: float) -> None:
        super().__init__(eta, event)
        self.log_k, self.c = log_k, c

    def baseline(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`.times.Survival`."""
        k, scaled = self.log_k.exp(), t.log() + self.c
        return self.log_k + (k - 1) * scaled, (k * scaled - self.c).exp()

    def when(self, amount: Tensor) -> Tensor:
        """See :class:`.times.Survival`."""
        return ((amount.log() + self.c) / self.log_k.exp() - self.c).exp()

    @property
    def mean(self) -> Tensor:
        """The mean of the time."""
        scale = (self.c - self.eta) / self.log_k.exp() - self.c
        return (scale + torch.lgamma(1 + (-self.log_k).exp())).exp()


@dataclass(frozen=True)
class WeibullResponse(TimeResponse):
    """Weibull times.

    Attributes:
        c: the offset of eta (see :class:`Weibull`).
    """

    c: float

    name = "weibull"
    about = "times; hazard k t^(k - 1) exp(eta): *shape* k"
    ratio = "hazard ratio"
    order = 100
    columns = ("event",)

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        return cls(design.offset)

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log k."""
        return {"log_k": torch.tensor(0.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Survival:
        """See :class:`.base.Response`."""
        return Weibull(eta, rows.event, values["log_k"], self.c)

    def coefficients(
        self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]
    ) -> tuple[Sequence[str], Tensor]:
        """The intercept is of H_0(t) = t^k."""
        more = (values["log_k"].exp() - 1) * self.c
        at = beta.new_tensor([1.0 if name in INTERCEPT else 0.0 for name in names])
        return names, beta + more[:, None] * at

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """k."""
        return {"shape": values["log_k"].exp()}
