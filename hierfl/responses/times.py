"""What times until something happens share: hazards are proportional.

    hazard(t) = h_0(t) exp(eta),    log p = event * log hazard(t) - exp(eta) H_0(t),    H_0 the integral of h_0

A row whose event is 0 was watched until t without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from ..errors import UserError
from .base import Response, Rows
from .reading import check_above_zero


class Survival(TorchDistribution):
    """A time with proportional hazards; log densities are of its event or of having none by then.

    Args:
        eta: (..., S, n).
        event: 1 or 0, broadcast to it; None for events everywhere.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.positive

    def __init__(self, eta: Tensor, event: Tensor | None) -> None:
        self.eta, self.event = eta, event
        super().__init__(eta.shape, validate_args=False)

    def baseline(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """log h_0 and H_0."""
        raise NotImplementedError

    def when(self, amount: Tensor) -> Tensor:
        """The time at which H_0 has reached so much."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """See the module."""
        log_hazard, total = self.baseline(value)
        event = 1.0 if self.event is None else self.event
        return event * (log_hazard + self.eta) - self.eta.exp() * total

    def cdf(self, value: Tensor) -> Tensor:
        """P(the event is by then)."""
        return -torch.expm1(-self.eta.exp() * self.baseline(value)[1])

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """The time of an event, however late."""
        u = torch.rand(sample_shape + self.batch_shape, dtype=self.eta.dtype, device=self.eta.device)
        return self.when(-torch.log1p(-u) * (-self.eta).exp())


class TimeResponse(Response):
    """A time until something happens: its derivatives are a Poisson's."""

    columns: ClassVar[tuple[str, ...]] = ("event",)

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        check_above_zero(cls.name, name, y)

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See :class:`.base.Response`."""
        ones, offset = np.ones_like(y), rows.get("offset", np.zeros_like(y))
        return np.stack([rows.get("event", ones), y * np.exp(offset)], 1)

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`."""
        if not total:
            raise UserError("no row has an event: nothing can be learned of when they happen")
        return float(np.log(max(total, 1.0) / count))

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Survival:
        """See :class:`.base.Response`."""
        raise NotImplementedError

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        amount = eta.exp() * self.distribution(eta, values, rows).baseline(y)[1]
        return (1.0 if rows.event is None else rows.event) - amount, amount
