"""Counts above zero: y ~ Poisson(exp(eta)) given that it is not 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base import Rows
from .binomial_links import HIGHEST, LOWEST, ratio_to_expm1
from .counts import CountDistribution, CountResponse, Poisson
from .reading import impossible


class TruncatedPoisson(CountDistribution):
    """A Poisson count above 0.

    Args:
        eta: the logarithm of the mean before zeros are left out, (..., S, n).
    """

    def __init__(self, eta: Tensor) -> None:
        self.eta = eta
        super().__init__(eta.shape)

    @property
    def mean(self) -> Tensor:
        """mu / (1 - exp(-mu)), mu = exp(eta)."""
        return self.eta.exp() + ratio_to_expm1(self.eta)[0]

    @property
    def variance(self) -> Tensor:
        """E(y^2) = (1 + mu) E(y), less E(y)^2."""
        return self.mean * (1 + self.eta.exp() - self.mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """y eta - mu - log y! - log(1 - exp(-mu)); of 0 it is -inf."""
        rate = self.eta.clamp(LOWEST, HIGHEST).exp()
        above = value * self.eta - rate - torch.lgamma(value + 1) - (-torch.expm1(-rate)).log()
        return torch.where(value == 0, -torch.inf, above)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """1 at the time of a first event, before the end, and those that follow it."""
        rate = self.eta.exp().expand(sample_shape + self.batch_shape)
        first = -torch.log1p(torch.rand_like(rate) * torch.expm1(-rate))
        return 1 + Poisson((rate - first).clamp_min(0)).sample()


class AboveZeroResponse(CountResponse):
    """A whole number from 1, of rate exp(eta) before zeros are left out."""

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        whole = (y >= 1) & (y == np.floor(y))
        if not whole.all():
            raise impossible(name, y, whole, f"a {cls.name} response is a whole number from 1")


class TruncatedPoissonResponse(AboveZeroResponse):
    """y ~ TruncatedPoisson(exp(eta))."""

    name = "truncated-poisson"
    about = "a Poisson count above 0, of rate exp(eta) before zeros are left out"
    ratio = "rate ratio"
    order = 58

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return TruncatedPoisson(eta)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        rate, (share, rest) = eta.clamp(LOWEST, HIGHEST).exp(), ratio_to_expm1(eta)
        return y - rate - share, rate - share * rest
