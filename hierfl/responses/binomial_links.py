"""Binomial responses of other links than the logistic: y ~ Binomial(trials, p), p a distribution function of eta.

probit     p = Phi(eta), the standard normal's: a normal score above zero
cloglog    p = 1 - exp(-exp(eta)): an event before the end of a time, of proportional hazards
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, log1p, pi, sqrt
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from pyro.distributions import Binomial
from torch import Tensor

from ..shapes import broadcast_shapes
from .base import Rows
from .binomial import BinomialResponse
from .counts import CountDistribution

#: beyond these exp(eta), or what is left of 1, is no number of double precision
LOWEST, HIGHEST, NONE_LEFT = -700.0, 700.0, 6.5
#: below it 1 - x / expm1(x) is a series
SERIES_BELOW = 1e-3


class LinkedBinomial(CountDistribution):
    """Successes among trials, by the logarithms of both probabilities: neither is 1 less the other where it is small.

    Args:
        log_success, log_failure: (..., S, n).
        trials: broadcast to them.
    """

    def __init__(self, log_success: Tensor, log_failure: Tensor, trials: Tensor) -> None:
        self.log_success, self.log_failure, self.trials = log_success, log_failure, trials
        super().__init__(broadcast_shapes(log_success.shape, trials.shape))

    @property
    def mean(self) -> Tensor:
        """The mean of the successes."""
        return (self.trials * self.log_success.exp()).expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """n p (1 - p)."""
        return (self.trials * (self.log_success + self.log_failure).exp()).expand(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """log C(trials, y) + y log p + (trials - y) log(1 - p)."""
        missed = self.trials - value
        choose = torch.lgamma(self.trials + 1) - torch.lgamma(value + 1) - torch.lgamma(missed + 1)
        return choose + value * self.log_success + missed * self.log_failure

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A binomial's."""
        shape = self.batch_shape
        return Binomial(self.trials.expand(shape), self.log_success.exp().expand(shape)).sample(sample_shape)


def _trials(rows: Rows, like: Tensor) -> Tensor:
    return like.new_ones(()) if rows.trials is None else rows.trials


def _mean(total: float, count: float) -> float:
    """Inside (0, 1), where all rows are successes or none is."""
    return min(max(total / count, 1 / count), 1 - 1 / count)


class ProbitResponse(BinomialResponse):
    """y ~ Binomial(trials, Phi(eta))."""

    name = "binomial-probit"
    about = "as binomial, of the probability Phi(eta), Phi the standard normal distribution function"
    ratio = ""
    order = 21
    # Of a client without successes phi(eta) / Phi(eta) rises on one side alone: by 6 steps its spread is 6 % short.
    chain_steps: ClassVar[int] = 24

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`."""
        return NormalDist().inv_cdf(_mean(total, count))

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return LinkedBinomial(torch.special.log_ndtr(eta), torch.special.log_ndtr(-eta), _trials(rows, eta))

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        missed = _trials(rows, eta) - y
        won, lost = _mills(eta), _mills(-eta)
        return y * won - missed * lost, y * won * (won + eta) + missed * lost * (lost - eta)


def _mills(eta: Tensor) -> Tensor:
    """phi(eta) / Phi(eta)."""
    return (-0.5 * eta.square() - torch.special.log_ndtr(eta)).exp() / sqrt(2 * pi)


class CloglogResponse(BinomialResponse):
    """y ~ Binomial(trials, 1 - exp(-exp(eta)))."""

    name = "binomial-cloglog"
    about = "as binomial, of the probability 1 - exp(-exp(eta))"
    ratio = "hazard ratio"
    order = 22

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`."""
        return log(-log1p(-_mean(total, count)))

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        hazard = eta.clamp(LOWEST, HIGHEST).exp()
        # 1 - exp(-h) by the side on which digits are left.
        low = hazard < log(2)
        few, many = torch.where(low, hazard, 1.0), torch.where(low, 1.0, hazard)
        log_success = torch.where(low, (-torch.expm1(-few)).log(), torch.log1p(-(-many).exp()))
        return LinkedBinomial(log_success, -hazard, _trials(rows, eta))

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        missed, hazard = _trials(rows, eta) - y, eta.clamp(LOWEST, HIGHEST).exp()
        share, rest = ratio_to_expm1(eta)
        return y * share - missed * hazard, y * share * rest + missed * hazard


def ratio_to_expm1(eta: Tensor) -> tuple[Tensor, Tensor]:
    """r = x / (exp(x) - 1) and x + r - 1 of x = exp(eta): r is what log(1 - exp(-x)) rises by in eta."""
    x = eta.clamp(LOWEST, NONE_LEFT).exp()
    share = x / torch.expm1(x)
    near = torch.where(x < SERIES_BELOW, x, 0.0)
    return share, torch.where(x < SERIES_BELOW, near / 2 + near.square() / 12 - near**4 / 720, x + share - 1)
