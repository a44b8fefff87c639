"""Counts whose variance is a multiple of their mean (the quasi-Poisson's), as negative binomial ones.

    y ~ NegativeBinomial(mean mu, size mu / dispersion),    mu = exp(eta)

y is a sum of t logarithmic counts, t ~ Poisson(mu log(1 + dispersion) / dispersion).
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


class NegativeBinomial1(CountDistribution):
    """The negative binomial distribution of mean mu = exp(eta) and variance mu (1 + dispersion).

    Args:
        eta: (..., S, n).
        dispersion: broadcast to it.
    """

    def __init__(self, eta: Tensor, dispersion: Tensor) -> None:
        self.eta, self.dispersion = eta, dispersion
        super().__init__(broadcast_shapes(eta.shape, dispersion.shape))

    @property
    def mean(self) -> Tensor:
        """exp(eta)."""
        return self.eta.exp().expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """exp(eta) (1 + dispersion)."""
        return self.mean * (1 + self.dispersion)

    def log_prob(self, value: Tensor) -> Tensor:
        """log Gamma(y + size) - log Gamma(size) - log y! - y log size + y eta - (y + size) log(1 + dispersion)."""
        size, over = self.eta.exp() / self.dispersion, torch.log1p(self.dispersion)
        # Size log(1 + dispersion) is the mean times a ratio that is 1 where there is no dispersion.
        rate = self.eta.exp() * (over / self.dispersion)
        return rising(value, size) + value * self.eta - value * over - rate - torch.lgamma(value + 1)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A Poisson's of a Gamma's."""
        size = (self.eta.exp() / self.dispersion).expand(self.batch_shape)
        return Poisson(Gamma(size, (1 / self.dispersion).expand(self.batch_shape)).sample(sample_shape)).sample()


class NegativeBinomial1Response(CountResponse):
    """y ~ NegativeBinomial1(exp(eta), dispersion), whose log density bends both ways."""

    name = "nbinom1"
    about = "mean mu = exp(eta), variance mu (1 + dispersion): *dispersion*"
    ratio = "rate ratio"
    order = 45
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_dispersion"}
    concave: ClassVar[bool] = False

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log dispersion."""
        return {"log_dispersion": torch.tensor(0.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return NegativeBinomial1(eta, values["log_dispersion"].exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        rate, size = self.safe_weight(eta, y, values, rows), eta.exp() / values["log_dispersion"].exp()
        # the expected number of logarithmic counts, given y
        groups = size * rising(y, size, 1)
        return groups - rate, rate - groups - size.square() * rising(y, size, 2)

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The Poisson's, of the number of logarithmic counts."""
        dispersion = values["log_dispersion"].exp()
        return eta.exp() * (torch.log1p(dispersion) / dispersion)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The dispersion."""
        return {"dispersion": values["log_dispersion"].exp()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        return "at its lower bound: no more spread than a Poisson's" if value < 1 / NO_END else ""
