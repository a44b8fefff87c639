"""Poisson responses: y ~ Poisson(exp(eta))."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .base import Rows
from .counts import CountResponse, Poisson


class PoissonResponse(CountResponse):
    """y ~ Poisson(exp(eta))."""

    name = "poisson"
    about = "rate exp(eta)"
    ratio = "rate ratio"
    order = 30

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return Poisson(eta.exp())

    def log_total(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows, mask: Tensor | None
    ) -> Tensor | None:
        """y eta - exp(eta) - log y!, whose last term is each row's once."""
        terms, constant = (y * eta).sub_(eta.exp()), torch.lgamma(y + 1.0)
        if mask is not None:
            terms, constant = torch.where(mask, terms, 0.0), torch.where(mask, constant, 0.0)
        return terms.sum(-1) - constant.sum(-1)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        rate = eta.exp()
        return y - rate, rate
