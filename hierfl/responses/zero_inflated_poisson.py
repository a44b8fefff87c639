"""Zero-inflated Poisson responses: y = 0 with probability pi, else y ~ Poisson(exp(eta))."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..shapes import broadcast_shapes
from .base import Rows
from .counts import NO_END, CountDistribution, CountResponse, Poisson


class ZeroInflatedPoisson(CountDistribution):
    """0 with probability pi = logistic(gate), else a Poisson of mean exp(eta).

    Args:
        eta: (..., S, n).
        gate: broadcast to it.
    """

    def __init__(self, eta: Tensor, gate: Tensor) -> None:
        self.eta, self.gate = eta, gate
        super().__init__(broadcast_shapes(eta.shape, gate.shape))

    @property
    def mean(self) -> Tensor:
        """(1 - pi) exp(eta)."""
        return (-self.gate).sigmoid() * self.eta.exp()

    @property
    def variance(self) -> Tensor:
        """(1 - pi) mu (1 + pi mu), mu = exp(eta)."""
        return self.mean * (1 + self.gate.sigmoid() * self.eta.exp())

    def log_prob(self, value: Tensor) -> Tensor:
        """log((1 - pi) p(y) + pi [y = 0])."""
        rate, counted = self.eta.exp(), logsigmoid(-self.gate)
        zero = torch.logaddexp(logsigmoid(self.gate), counted - rate)
        return torch.where(value == 0, zero, counted + value * self.eta - rate - torch.lgamma(value + 1))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A Poisson's, or zero."""
        drawn = Poisson(self.eta.exp().expand(self.batch_shape)).sample(sample_shape)
        return torch.where(torch.rand_like(drawn) < self.gate.sigmoid(), 0.0, drawn)


class ZeroInflatedPoissonResponse(CountResponse):
    """y ~ ZeroInflatedPoisson(exp(eta), pi): where y is 0 its log density bends both ways."""

    name = "zero-inflated-poisson"
    about = "zero with *p(zero)*, else Poisson"
    ratio = "rate ratio"
    order = 50
    formulas: ClassVar[Mapping[str, str]] = {"zero_inflation": "logit_zero"}
    concave: ClassVar[bool] = False

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """logit pi, at one in ten."""
        return {"logit_zero": torch.tensor(0.1).double().logit()}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return ZeroInflatedPoisson(eta, values["logit_zero"])

    def counted(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """The probability that y is a Poisson's, given y."""
        return torch.where(y == 0, (-values["logit_zero"] - eta.exp()).sigmoid(), 1.0)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        rate, counted = eta.exp(), self.counted(eta, y, values)
        return y - counted * rate, counted * rate * (1 - (1 - counted) * rate)

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The Poisson's weight, as often as y is thought to be one."""
        return self.counted(eta, y, values) * eta.exp()

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """pi."""
        return {"p(zero)": values["logit_zero"].sigmoid()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        return "at its lower bound: no more zeros than a Poisson's" if value < 1 / NO_END else ""
