"""Counts above zero that spread more: y ~ NegativeBinomial(exp(eta), size) given that it is not 0.

With t = size log(1 + mu / size), mu = exp(eta), the probability of 0 is exp(-t). t bends upward in eta, so that both
the negative binomial's log density and -t are concave. -log(1 - exp(-t)) is not, and nor is the sum where size < 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import Gamma
from torch import Tensor

from .base import Rows
from .binomial_links import HIGHEST, LOWEST
from .counts import NO_END, CountDistribution, Poisson
from .negative_binomial import NegativeBinomial, NegativeBinomialResponse
from .truncated_poisson import AboveZeroResponse

#: below it t + t / expm1(t) - 1, and log(1 + w) - w, are series
SERIES_BELOW = 1e-2


class TruncatedNegativeBinomial(CountDistribution):
    """A negative binomial count above 0.

    Args:
        eta: the logarithm of the mean before zeros are left out, (..., S, n).
        size: broadcast to it.
    """

    def __init__(self, eta: Tensor, size: Tensor) -> None:
        self.eta, self.size = eta.clamp(LOWEST, HIGHEST), size
        super().__init__(torch.broadcast_shapes(eta.shape, size.shape))

    @property
    def exponent(self) -> Tensor:
        """t."""
        return self.size * torch.log1p(self.eta.exp() / self.size)

    @property
    def mean(self) -> Tensor:
        """mu / (1 - exp(-t))."""
        return self.eta.exp() / -torch.expm1(-self.exponent)

    @property
    def variance(self) -> Tensor:
        """E(y^2) = (1 + mu + mu / size) E(y), less E(y)^2."""
        mu = self.eta.exp()
        return self.mean * (1 + mu + mu / self.size - self.mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """That of the negative binomial, less log(1 - exp(-t)); of 0 it is -inf."""
        above = NegativeBinomial(self.eta, self.size).log_prob(value) - (-torch.expm1(-self.exponent)).log()
        return torch.where(value == 0, -torch.inf, above)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Jumps of logarithmic sizes come at rate t: a first one before the time 1 is up, and those that follow it.

        The first is drawn by Kemp's method (Applied Statistics 30:249, 1981).
        """
        shape = sample_shape + self.batch_shape
        t, size = self.exponent.expand(shape), self.size.expand(shape)
        first = -torch.log1p(torch.rand_like(t) * torch.expm1(-t)) / t
        ratio = -torch.expm1(-torch.rand_like(t) * t / size)
        jump = 1 + (torch.log1p(-torch.rand_like(t)) / ratio.log()).floor()
        left = (size * (1 - first)).clamp_min(torch.finfo(t.dtype).tiny)
        return jump + Poisson(Gamma(left, size * (-self.eta).exp()).sample()).sample()


class TruncatedNegativeBinomialResponse(AboveZeroResponse):
    """y ~ TruncatedNegativeBinomial(exp(eta), size), whose log density bends both ways."""

    name = "truncated-negative-binomial"
    about = "a negative binomial count above 0, of mean exp(eta) before zeros are left out: *size*"
    ratio = "rate ratio"
    order = 59
    concave: ClassVar[bool] = False
    _counts: ClassVar = NegativeBinomialResponse()

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log size."""
        return self._counts.starts

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return TruncatedNegativeBinomial(eta, values["log_size"].exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        slope, weight = self._counts.slope_and_weight(eta, y, values, rows)
        at = _Zeros.at_predictor(eta, values["log_size"].exp())
        return slope - at.unseen * at.pace, weight + at.bend

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The negative binomial's weight, of what was seen and of as many zeros as were not (Dempster, Laird and
        Rubin).
        """
        at = _Zeros.at_predictor(eta, values["log_size"].exp())
        return self._counts.slope_and_weight(eta, y, values, rows)[1] + at.unseen * at.quickens

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The size."""
        return self._counts.own(names, beta, values)

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        if value < 1 / NO_END:
            return "at its lower bound: a logarithmic count, of which rates are not identified"
        return self._counts.at_bound(name, value)


class _Zeros:
    """What was not seen, at some linear predictors.

    Attributes:
        unseen: how many zeros there were for each count that was seen, 1 / (exp(t) - 1).
        pace, quickens: the derivatives of t in eta.
        bend: minus the second derivative of -log(1 - exp(-t)) in eta, not above zero.
    """

    def __init__(self, unseen: Tensor, pace: Tensor, quickens: Tensor, bend: Tensor) -> None:
        self.unseen, self.pace, self.quickens, self.bend = unseen, pace, quickens, bend

    @classmethod
    def at_predictor(cls, eta: Tensor, size: Tensor) -> _Zeros:
        """The zeros' terms at eta, which is broadcast with size."""
        mu = eta.clamp(LOWEST, HIGHEST).exp()
        w = mu / size
        share, t = 1 / (1 + w), size * torch.log1p(w)
        pace, quickens = mu * share, mu * share.square()
        unseen = 1 / torch.expm1(t)
        # Pace^2 and t quickens have the same leading digits: their difference is written without these.
        bend = t * unseen * (quickens * size * _log1p_less(w) / t.square() - (pace / t).square() * _rest(t))
        return cls(unseen, pace, quickens, bend)


def _log1p_less(w: Tensor) -> Tensor:
    """log(1 + w) - w."""
    near = torch.where(w < SERIES_BELOW, w, 0.0)
    series = torch.zeros_like(near)
    for k in range(10, 1, -1):
        series = 1 / k - near * series
    return torch.where(w < SERIES_BELOW, -near.square() * series, torch.log1p(w) - w)


def _rest(t: Tensor) -> Tensor:
    """t + t / (exp(t) - 1) - 1."""
    near = torch.where(t < SERIES_BELOW, t, 0.0)
    return torch.where(t < SERIES_BELOW, near / 2 + near.square() / 12 - near**4 / 720, t + t / torch.expm1(t) - 1)
