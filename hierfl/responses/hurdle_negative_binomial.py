"""Hurdle negative binomial responses: y = 0 with probability pi, else a negative binomial count above 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .base import Rows
from .counts import CountDistribution, CountResponse
from .truncated_negative_binomial import TruncatedNegativeBinomial, TruncatedNegativeBinomialResponse


class HurdleNegativeBinomial(CountDistribution):
    """0 with probability pi = logistic(gate), else a negative binomial count above 0.

    Args:
        eta: the logarithm of the mean before zeros are left out, (..., S, n).
        size, gate: broadcast to it.
    """

    def __init__(self, eta: Tensor, size: Tensor, gate: Tensor) -> None:
        self.above, self.gate = TruncatedNegativeBinomial(eta, size), gate
        super().__init__(torch.broadcast_shapes(eta.shape, size.shape, gate.shape))

    @property
    def mean(self) -> Tensor:
        """(1 - pi) E(y | y > 0)."""
        return (-self.gate).sigmoid() * self.above.mean

    @property
    def variance(self) -> Tensor:
        """(1 - pi) (Var(y | y > 0) + pi E(y | y > 0)^2)."""
        return (-self.gate).sigmoid() * (self.above.variance + self.gate.sigmoid() * self.above.mean.square())

    def log_prob(self, value: Tensor) -> Tensor:
        """log pi, or log(1 - pi) + log p(y | y > 0)."""
        # A count of 1 instead of zeros: -inf has no derivatives.
        above = logsigmoid(-self.gate) + self.above.log_prob(value.clamp_min(1))
        return torch.where(value == 0, logsigmoid(self.gate), above)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A zero, or a count above it."""
        drawn = self.above.expand(self.batch_shape).sample(sample_shape)
        return torch.where(torch.rand_like(drawn) < self.gate.sigmoid(), 0.0, drawn)


class HurdleNegativeBinomialResponse(CountResponse):
    """y ~ HurdleNegativeBinomial(exp(eta), size, pi): zeros say nothing of eta; what is above them bends both ways."""

    name = "hurdle-negative-binomial"
    about = "zero with *p(zero)*, else negative binomial above 0, of mean exp(eta) before zeros are left out: *size*"
    ratio = "rate ratio"
    order = 58
    concave: ClassVar[bool] = False
    _above: ClassVar = TruncatedNegativeBinomialResponse()

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log size, and logit pi."""
        return {**self._above.starts, "logit_zero": torch.tensor(0.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return HurdleNegativeBinomial(eta, values["log_size"].exp(), values["logit_zero"])

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        slope, weight = self._above.slope_and_weight(eta, y, values, rows)
        return torch.where(y > 0, slope, 0.0), torch.where(y > 0, weight, 0.0)

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """That of a count above zero."""
        return torch.where(y > 0, self._above.safe_weight(eta, y, values, rows), 0.0)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The size, and pi."""
        return {**self._above.own(names, beta, values), "p(zero)": values["logit_zero"].sigmoid()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        return self._above.at_bound(name, value) if name == "size" else ""
