"""Counts that spread more than a Poisson's or a binomial's.

    negative binomial        y ~ Poisson(g mu),          g ~ Gamma(size, size),              mu = exp(eta)
    zero-inflated Poisson    y = 0 with probability pi, else y ~ Poisson(mu)
    beta-binomial            y ~ Binomial(trials, r),    r ~ Beta(mu phi, (1 - mu) phi),     mu = logistic(eta)

Where size or phi have no end, or pi is zero, the spread is the Poisson's or the binomial's own. Ratios of gamma
functions are written so that nothing is lost there (:mod:`.gamma_ratios`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import Beta, Binomial, Gamma, Poisson, TorchDistribution, constraints
from torch import Tensor
from torch.nn.functional import logsigmoid

from hierfl.data.formula.design import Columns

from .families import ResponseFamily
from .gamma_ratios import rising

#: a number of the family's own beyond this is at its bound
NO_END = 1e6


class Counts(TorchDistribution):
    """A distribution of whole numbers whose log density is written here.

    Args:
        shape: of its values.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.nonnegative

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(shape, validate_args=False)


class NegativeBinomial(Counts):
    """Of mean exp(eta) and variance mean + mean^2 / size.

    Args:
        eta: (..., S, n).
        size: broadcast to it.
    """

    def __init__(self, eta: Tensor, size: Tensor) -> None:
        self.eta, self.size = eta, size
        super().__init__(torch.broadcast_shapes(eta.shape, size.shape))

    @property
    def mean(self) -> Tensor:
        """exp(eta)."""
        return self.eta.exp().expand(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """With log Gamma(y + size) - log Gamma(size) - y log(size + mu) + y eta - size log(1 + mu / size)."""
        over = torch.log1p(self.eta.exp() / self.size)
        return rising(value, self.size) + value * self.eta - (value + self.size) * over - torch.lgamma(value + 1)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A Poisson's of a Gamma's."""
        size = self.size.expand(self.batch_shape)
        return Poisson(Gamma(size, size * (-self.eta).exp()).sample(sample_shape)).sample()


class ZeroInflatedPoisson(Counts):
    """0 with probability pi = logistic(gate), else a Poisson of mean exp(eta).

    Args:
        eta: (..., S, n).
        gate: broadcast to it.
    """

    def __init__(self, eta: Tensor, gate: Tensor) -> None:
        self.eta, self.gate = eta, gate
        super().__init__(torch.broadcast_shapes(eta.shape, gate.shape))

    @property
    def mean(self) -> Tensor:
        """(1 - pi) exp(eta)."""
        return (-self.gate).sigmoid() * self.eta.exp()

    def log_prob(self, value: Tensor) -> Tensor:
        """log((1 - pi) p(y) + pi [y = 0])."""
        rate, counted = self.eta.exp(), logsigmoid(-self.gate)
        zero = torch.logaddexp(logsigmoid(self.gate), counted - rate)
        return torch.where(value == 0, zero, counted + value * self.eta - rate - torch.lgamma(value + 1))

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A Poisson's, or zero."""
        drawn = Poisson(self.eta.exp().expand(self.batch_shape)).sample(sample_shape)
        return torch.where(torch.rand_like(drawn) < self.gate.sigmoid(), 0.0, drawn)


class BetaBinomial(Counts):
    """Successes among trials, of a probability that has a beta distribution of mean logistic(eta).

    Args:
        eta: (..., S, n).
        precision: phi, broadcast to it.
        trials: likewise.
    """

    def __init__(self, eta: Tensor, precision: Tensor, trials: Tensor) -> None:
        self.eta, self.precision, self.trials = eta, precision, trials
        super().__init__(torch.broadcast_shapes(eta.shape, precision.shape, trials.shape))

    @property
    def mean(self) -> Tensor:
        """Of the successes."""
        return (self.trials * self.eta.sigmoid()).expand(self.batch_shape)

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


class NegativeBinomialFamily(ResponseFamily):
    """y ~ NegativeBinomial(exp(eta), size)."""

    ratio: ClassVar[str] = "rate ratio"

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log size."""
        return {"log_size": torch.tensor(0.0)}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`.families.ResponseFamily`."""
        return NegativeBinomial(eta, values["log_size"].exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.families.ResponseFamily`."""
        rate, size = eta.exp(), values["log_size"].exp()
        share = 1 / (1 + rate / size)
        return (y - rate) * share, (1 + y / size) * rate * share.square()

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The size."""
        return {"size": values["log_size"].exp()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.families.ResponseFamily`."""
        return "without end: no more spread than a Poisson's" if value > NO_END else ""


class ZeroInflatedPoissonFamily(ResponseFamily):
    """y ~ ZeroInflatedPoisson(exp(eta), pi): where y is 0 its log density bends both ways."""

    ratio: ClassVar[str] = "rate ratio"
    concave: ClassVar[bool] = False

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """logit pi, at one in ten."""
        return {"logit_zero": torch.tensor(0.1).double().logit()}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`.families.ResponseFamily`."""
        return ZeroInflatedPoisson(eta, values["logit_zero"])

    def counted(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """The probability that y is a Poisson's, given y."""
        return torch.where(y == 0, (-values["logit_zero"] - eta.exp()).sigmoid(), 1.0)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.families.ResponseFamily`."""
        rate, counted = eta.exp(), self.counted(eta, y, values)
        return y - counted * rate, counted * rate * (1 - (1 - counted) * rate)

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Tensor:
        """Of the Poisson's, as often as y is thought to be one."""
        return self.counted(eta, y, values) * eta.exp()

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """pi."""
        return {"p(zero)": values["logit_zero"].sigmoid()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.families.ResponseFamily`."""
        return "at its lower bound: no more zeros than a Poisson's" if value < 1 / NO_END else ""


class BetaBinomialFamily(ResponseFamily):
    """y ~ BetaBinomial(trials, logistic(eta), phi), whose log density bends both ways."""

    ratio: ClassVar[str] = "odds ratio"
    concave: ClassVar[bool] = False

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log phi."""
        return {"log_precision": torch.tensor(1.0)}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`.families.ResponseFamily`."""
        assert columns.trials is not None
        return BetaBinomial(eta, values["log_precision"].exp(), columns.trials)

    def _tables(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a = phi mu and b = phi (1 - mu); and a d/da of log Gamma(y + a) - log Gamma(a), and so for b.

        These are how many of the successes, and of the others, chose for themselves: in Polya's urn the i-th success
        does with probability a / (a + i - 1), the others copy one before them. Given them eta has a binomial's
        likelihood.
        """
        assert columns.trials is not None
        phi = values["log_precision"].exp()
        a, b = phi * eta.sigmoid(), phi * (-eta).sigmoid()
        return a, b, a * rising(y, a, 1), b * rising(columns.trials - y, b, 1)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.families.ResponseFamily`."""
        assert columns.trials is not None
        a, b, won, lost = self._tables(eta, y, values, columns)
        p, rest = eta.sigmoid(), (-eta).sigmoid()
        # d a / d eta = a (1 - mu); d^2 a / d eta^2 = a (1 - mu) (1 - 2 mu)
        bend = (a * rest).square() * rising(y, a, 2) + (b * p).square() * rising(columns.trials - y, b, 2)
        bend = bend + (won * rest - lost * p) * (rest - p)
        return won * rest - lost * p, -bend

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Tensor:
        """The binomial's, of those who chose for themselves."""
        _, _, won, lost = self._tables(eta, y, values, columns)
        return (won + lost) * eta.sigmoid() * (-eta).sigmoid()

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """phi."""
        return {"precision": values["log_precision"].exp()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.families.ResponseFamily`."""
        return "without end: no more spread than a binomial's" if value > NO_END else ""
