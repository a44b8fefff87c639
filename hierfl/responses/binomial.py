"""Binomial responses: y ~ Binomial(trials, logistic(eta)), of one trial where none are said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pyro.distributions import Bernoulli, Binomial
from torch import Tensor

from ..errors import UserError
from .base import Rows
from .proportions import ProportionResponse
from .reading import Cells
from .words import no_zeros_and_ones, not_binary

#: numbers below 2 whose product is one that a computer has, below 2^1024
FACTORS = 1000


class BinomialResponse(ProportionResponse):
    """y ~ Binomial(trials, logistic(eta))."""

    name = "binomial"
    about = "0 or 1, a level of text as in `y['yes']`, or `p(successes, trials)`: logistic(eta)"
    ratio = "odds ratio"
    order = 20

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        if not np.isin(y, (0, 1)).all():
            raise not_binary(name, y, cls.name)

    @classmethod
    def no_numbers(cls, cells: Cells) -> UserError:
        """See :class:`.base.Response`."""
        return no_zeros_and_ones(cells.name, cells.levels) or super().no_numbers(cells)

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        if rows.trials is None:
            return Bernoulli(logits=eta)
        return Binomial(rows.trials.expand_as(eta), logits=eta)

    def log_total(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows, mask: Tensor | None
    ) -> Tensor | None:
        """y eta - max(eta, 0) - log(1 + exp -|eta|): of a product of numbers below 2 one logarithm is taken."""
        if rows.trials is not None:
            return None
        linear, beyond = y * eta - eta.clamp_min(0.0), eta.abs().neg_().exp_().add_(1.0)
        if mask is not None:
            linear, beyond = torch.where(mask, linear, 0.0), torch.where(mask, beyond, 1.0)
        total = linear.sum(-1)
        for part in beyond.split(FACTORS, -1):
            total = total - part.prod(-1).log()
        return total

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        p, rest = eta.sigmoid(), (-eta).sigmoid()
        if rows.trials is None:
            return y - p, p * rest
        return y - rows.trials * p, rows.trials * p * rest
