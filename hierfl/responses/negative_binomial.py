"""Negative binomial responses, counts that spread more than a Poisson's.

y ~ Poisson(g mu),    g ~ Gamma(size, size),    mu = exp(eta)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import Gamma
from torch import Tensor

from ..shapes import broadcast_shapes
from .base import Rows
from .counts import NO_END, CountDistribution, CountResponse, Poisson
from .gamma_ratios import rising


class NegativeBinomial(CountDistribution):
    """The negative binomial distribution of mean exp(eta) and variance mean + mean^2 / size.

    Args:
        eta: (..., S, n).
        size: broadcast to it.
    """

    def __init__(self, eta: Tensor, size: Tensor) -> None:
        self.eta, self.size = eta, size
        super().__init__(broadcast_shapes(eta.shape, size.shape))

    @property
    def mean(self) -> Tensor:
        """exp(eta)."""
        return self.eta.exp().expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """mu + mu^2 / size."""
        return self.mean + self.mean.square() / self.size

    def log_prob(self, value: Tensor) -> Tensor:
        """log Gamma(y + size) - log Gamma(size) - log y! - y log(size + mu) + y eta - size log(1 + mu / size)."""
        over = torch.log1p(self.eta.exp() / self.size)
        return rising(value, self.size) + value * self.eta - (value + self.size) * over - torch.lgamma(value + 1)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A Poisson's of a Gamma's."""
        size = self.size.expand(self.batch_shape)
        return Poisson(Gamma(size, size * (-self.eta).exp()).sample(sample_shape)).sample()


class NegativeBinomialResponse(CountResponse):
    """y ~ NegativeBinomial(exp(eta), size)."""

    name = "negative-binomial"
    about = "mean mu = exp(eta), variance mu + mu^2 / size: *size*"
    ratio = "rate ratio"
    order = 40
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_size"}

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log size."""
        return {"log_size": torch.tensor(0.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return NegativeBinomial(eta, values["log_size"].exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        rate, size = eta.exp(), values["log_size"].exp()
        share = 1 / (1 + rate / size)
        return (y - rate) * share, (1 + y / size) * rate * share.square()

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The size."""
        return {"size": values["log_size"].exp()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        return "without end: no more spread than a Poisson's" if value > NO_END else ""
