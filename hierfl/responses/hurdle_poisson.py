"""Hurdle Poisson responses: y = 0 with probability pi, else y ~ Poisson(exp(eta)) given that it is not 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..shapes import broadcast_shapes
from .base import Rows
from .binomial_links import HIGHEST, LOWEST, ratio_to_expm1
from .counts import CountDistribution, CountResponse, Poisson


class HurdlePoisson(CountDistribution):
    """0 with probability pi = logistic(gate), else a Poisson count above 0.

    Args:
        eta: the logarithm of the Poisson's mean before zeros are left out, (..., S, n).
        gate: broadcast to it.
    """

    def __init__(self, eta: Tensor, gate: Tensor) -> None:
        self.eta, self.gate = eta, gate
        super().__init__(broadcast_shapes(eta.shape, gate.shape))

    @property
    def mean(self) -> Tensor:
        """(1 - pi) mu / (1 - exp(-mu)), mu = exp(eta)."""
        return (-self.gate).sigmoid() * (self.eta.exp() + ratio_to_expm1(self.eta)[0])

    @property
    def variance(self) -> Tensor:
        """E(y) (1 + mu) - E(y)^2: a Poisson's second moment over the probability of a count above 0."""
        return self.mean * (1 + self.eta.exp() - self.mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """log pi, or log(1 - pi) + y eta - mu - log y! - log(1 - exp(-mu))."""
        rate = self.eta.clamp(LOWEST, HIGHEST).exp()
        above = logsigmoid(-self.gate) + value * self.eta - rate - torch.lgamma(value + 1) - (-torch.expm1(-rate)).log()
        return torch.where(value == 0, logsigmoid(self.gate), above)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A zero, or 1 at the time of a first event, before the end, and those that follow it."""
        rate = self.eta.exp().expand(sample_shape + self.batch_shape)
        first = -torch.log1p(torch.rand_like(rate) * torch.expm1(-rate))
        drawn = 1 + Poisson((rate - first).clamp_min(0)).sample()
        return torch.where(torch.rand_like(drawn) < self.gate.sigmoid(), 0.0, drawn)


class HurdlePoissonResponse(CountResponse):
    """y ~ HurdlePoisson(exp(eta), pi): zeros say nothing of eta."""

    name = "hurdle-poisson"
    about = "zero with *p(zero)*, else a Poisson count above 0, of rate exp(eta) before zeros are left out"
    ratio = "rate ratio"
    order = 57
    formulas: ClassVar[Mapping[str, str]] = {"zero_inflation": "logit_zero"}

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """logit pi."""
        return {"logit_zero": torch.tensor(0.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return HurdlePoisson(eta, values["logit_zero"])

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        rate, (share, rest) = eta.clamp(LOWEST, HIGHEST).exp(), ratio_to_expm1(eta)
        above = (y > 0).to(eta)
        return above * (y - rate - share), above * (rate - share * rest)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """pi."""
        return {"p(zero)": values["logit_zero"].sigmoid()}
