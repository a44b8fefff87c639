"""Beta-binomial responses, successes that spread more than a binomial's.

y ~ Binomial(trials, r),    r ~ Beta(mu phi, (1 - mu) phi),    mu = logistic(eta)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import Beta, Binomial
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..errors import UserError
from ..shapes import broadcast_shapes
from .base import Rows
from .counts import NO_END, CountDistribution
from .gamma_ratios import rising
from .proportions import ProportionResponse


class BetaBinomial(CountDistribution):
    """Successes among trials, of a probability that has a beta distribution of mean logistic(eta).

    Args:
        eta: (..., S, n).
        precision: phi, broadcast to it.
        trials: likewise.
    """

    def __init__(self, eta: Tensor, precision: Tensor, trials: Tensor) -> None:
        self.eta, self.precision, self.trials = eta, precision, trials
        super().__init__(broadcast_shapes(eta.shape, precision.shape, trials.shape))

    @property
    def mean(self) -> Tensor:
        """The mean of the successes."""
        return (self.trials * self.eta.sigmoid()).expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """That of a binomial, times (phi + trials) / (phi + 1)."""
        more = 1 + (self.trials - 1) / (self.precision + 1)
        return self.mean * (-self.eta).sigmoid() * more

    def log_prob(self, value: Tensor) -> Tensor:
        """The binomial's, times what three ratios of gamma functions are more than powers."""
        missed = self.trials - value
        a, b = (self.precision * self.eta.sigmoid(), self.precision * (-self.eta).sigmoid())
        choose = torch.lgamma(self.trials + 1) - torch.lgamma(value + 1) - torch.lgamma(missed + 1)
        binomial = choose + value * logsigmoid(self.eta) + missed * logsigmoid(-self.eta)
        return binomial + rising(value, a) + rising(missed, b) - rising(self.trials, self.precision)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A binomial's of a beta's."""
        phi, shape = self.precision, self.batch_shape
        r = Beta((phi * self.eta.sigmoid()).expand(shape), (phi * (-self.eta).sigmoid()).expand(shape))
        return Binomial(self.trials.expand(shape), r.sample(sample_shape)).sample()


class BetaBinomialResponse(ProportionResponse):
    """y ~ BetaBinomial(trials, logistic(eta), phi), whose log density bends both ways."""

    name = "beta-binomial"
    about = "`p(successes, trials)`, their probability beta(mu phi, (1 - mu) phi), mu = logistic(eta): *precision* phi"
    ratio = "odds ratio"
    order = 60
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_precision"}
    concave: ClassVar[bool] = False

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        raise UserError(f"a beta-binomial response is p(successes, trials), and {name!r} has no trials")

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log phi."""
        return {"log_precision": torch.tensor(1.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        assert rows.trials is not None
        return BetaBinomial(eta, values["log_precision"].exp(), rows.trials)

    def _tables(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a = phi mu and b = phi (1 - mu); and a d/da of log Gamma(y + a) - log Gamma(a), and so for b.

        These are how many of the successes, and of the others, chose for themselves: in Polya's urn the i-th success
        does with probability a / (a + i - 1), the others copy one before them. Given them eta has a binomial's
        likelihood.
        """
        assert rows.trials is not None
        phi = values["log_precision"].exp()
        a, b = phi * eta.sigmoid(), phi * (-eta).sigmoid()
        return a, b, a * rising(y, a, 1), b * rising(rows.trials - y, b, 1)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        assert rows.trials is not None
        a, b, won, lost = self._tables(eta, y, values, rows)
        p, rest = eta.sigmoid(), (-eta).sigmoid()
        # d a / d eta = a (1 - mu); d^2 a / d eta^2 = a (1 - mu) (1 - 2 mu)
        bend = (a * rest).square() * rising(y, a, 2) + (b * p).square() * rising(rows.trials - y, b, 2)
        bend = bend + (won * rest - lost * p) * (rest - p)
        return won * rest - lost * p, -bend

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The binomial's, of those who chose for themselves."""
        _, _, won, lost = self._tables(eta, y, values, rows)
        return (won + lost) * eta.sigmoid() * (-eta).sigmoid()

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """phi."""
        return {"precision": values["log_precision"].exp()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        return "without end: no more spread than a binomial's" if value > NO_END else ""
