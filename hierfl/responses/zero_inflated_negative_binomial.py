"""Zero-inflated negative binomial responses: y = 0 with probability pi, else y ~ NegativeBinomial(exp(eta), size)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..shapes import broadcast_shapes
from .base import Rows
from .counts import NO_END, CountDistribution, CountResponse
from .negative_binomial import NegativeBinomial, NegativeBinomialResponse


class ZeroInflatedNegativeBinomial(CountDistribution):
    """0 with probability pi = logistic(gate), else a negative binomial count.

    Args:
        eta: (..., S, n).
        size, gate: broadcast to it.
    """

    def __init__(self, eta: Tensor, size: Tensor, gate: Tensor) -> None:
        self.counts, self.gate = NegativeBinomial(eta, size), gate
        super().__init__(broadcast_shapes(eta.shape, size.shape, gate.shape))

    @property
    def mean(self) -> Tensor:
        """(1 - pi) exp(eta)."""
        return (-self.gate).sigmoid() * self.counts.mean

    @property
    def variance(self) -> Tensor:
        """(1 - pi) (exp(eta) + exp(2 eta) / size + pi exp(2 eta))."""
        return (-self.gate).sigmoid() * (self.counts.variance + self.gate.sigmoid() * self.counts.mean.square())

    def log_prob(self, value: Tensor) -> Tensor:
        """log((1 - pi) p(y) + pi [y = 0])."""
        counted = logsigmoid(-self.gate) + self.counts.log_prob(value)
        return torch.where(value == 0, torch.logaddexp(logsigmoid(self.gate), counted), counted)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A negative binomial's, or zero."""
        drawn = self.counts.expand(self.batch_shape).sample(sample_shape)
        return torch.where(torch.rand_like(drawn) < self.gate.sigmoid(), 0.0, drawn)


class ZeroInflatedNegativeBinomialResponse(CountResponse):
    """y = 0 with probability pi, else y ~ NegativeBinomial(exp(eta), size); at 0 not log-concave in eta."""

    name = "zero-inflated-negative-binomial"
    about = "zero with *p(zero)*, else negative binomial: *size*"
    ratio = "rate ratio"
    order = 55
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_size", "zero_inflation": "logit_zero"}
    concave: ClassVar[bool] = False
    _counts: ClassVar = NegativeBinomialResponse()

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log size, and logit pi at one in ten."""
        return {"log_size": torch.tensor(0.0), "logit_zero": torch.tensor(0.1).double().logit()}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return ZeroInflatedNegativeBinomial(eta, values["log_size"].exp(), values["logit_zero"])

    def counted(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """The probability that y is a negative binomial's, given y."""
        size = values["log_size"].exp()
        return torch.where(y == 0, (-values["logit_zero"] - size * torch.log1p(eta.exp() / size)).sigmoid(), 1.0)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        slope, weight = self._counts.slope_and_weight(eta, y, values, rows)
        counted = self.counted(eta, y, values)
        return counted * slope, counted * (weight - (1 - counted) * slope.square())

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The negative binomial's weight, as often as y is thought to be one."""
        return self.counted(eta, y, values) * self._counts.slope_and_weight(eta, y, values, rows)[1]

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The size, and pi."""
        return {"size": values["log_size"].exp(), "p(zero)": values["logit_zero"].sigmoid()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        if name == "size":
            return self._counts.at_bound(name, value)
        return "at its lower bound: no more zeros than a negative binomial's" if value < 1 / NO_END else ""
