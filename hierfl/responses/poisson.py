"""Poisson responses: y ~ Poisson(exp(eta))."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro.distributions import Poisson
from torch import Tensor

from .base import Rows
from .counts import CountResponse


class PoissonResponse(CountResponse):
    """y ~ Poisson(exp(eta))."""

    name = "poisson"
    about = "rate exp(eta)"
    ratio = "rate ratio"
    order = 30

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return Poisson(eta.exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        rate = eta.exp()
        return y - rate, rate
