"""Binomial responses: y ~ Binomial(trials, logistic(eta)), of one trial where none are said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pyro.distributions import Bernoulli, Binomial
from torch import Tensor

from ..errors import UserError
from .base import Rows
from .proportions import ProportionResponse
from .reading import Cells
from .words import no_zeros_and_ones, not_binary


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

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        trials = 1.0 if rows.trials is None else rows.trials
        p = eta.sigmoid()
        return y - trials * p, trials * p * (-eta).sigmoid()
