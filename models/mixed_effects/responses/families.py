"""The responses of a generalised linear mixed model: their distributions, and derivatives of their log densities.

What is here has a log density that is concave in eta, and generalised self-concordant: a Newton step can be damped so
that it always climbs (:mod:`.newton`). :mod:`.dispersed` has counts that spread more, :mod:`.ordinal` levels and
:mod:`.survival` times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import Bernoulli, Binomial, Gamma, Normal, Poisson
from torch import Tensor

from hierfl.data.formula.design import Columns


class ResponseFamily:
    """A response with a linear predictor eta and a few numbers of its own.

    Attributes:
        ratio: what exp(beta) is; empty where it is nothing of the kind.
        concave: whether log p(y | eta) is concave in eta wherever its numbers are.
    """

    ratio: ClassVar[str] = ""
    concave: ClassVar[bool] = True

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """Its own numbers, and where they begin: logarithms or the like, on the real line; () or (m,)."""
        return {}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """p(y | eta), (..., S, n), as a Pyro distribution."""
        raise NotImplementedError

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """Of log p(y | eta): its derivative in eta, and minus its second one."""
        raise NotImplementedError

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Tensor:
        """Where that is not concave: the weight, nowhere below zero, of a concave function that touches it in eta and
        lies below it, so that a step that climbs the one climbs the other (Dempster, Laird and Rubin, 1977).
        """
        return self.slope_and_weight(eta, y, values, columns)[1]

    def coefficients(
        self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]
    ) -> tuple[Sequence[str], Tensor]:
        """What a table of effects has of coefficients (D, p): names and values."""
        return names, beta

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """And of the family's own numbers, (D,) each."""
        return {}

    def at_bound(self, name: str, value: float) -> str:
        """What is to know where an own number has run into its bound."""
        return ""

    @property
    def level_names(self) -> tuple[Any, ...]:
        """What a table calls the levels 1, ..., K of a response; empty where it has none."""
        return ()

    def mean_of(self, fn: Any) -> Tensor:
        """The mean of p(y | eta) in the table's own numbers."""
        mean: Tensor = fn.mean
        return mean

    def level_probabilities(self, fn: Any) -> Tensor:
        """Of p(y | eta) the probability of each level, (..., K)."""
        raise NotImplementedError

    def in_table_numbers(self, y: Tensor) -> Tensor:
        """Responses as the table has them."""
        return y


class GaussianFamily(ResponseFamily):
    """y ~ N(eta, sigma^2), sigma learned or known for each row.

    Args:
        known: whether it is known.
        sd: where it begins.
    """

    def __init__(self, known: bool, sd: float) -> None:
        self.known, self.sd = known, sd

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log sigma, where it is learned."""
        return {} if self.known else {"log_noise": torch.tensor(self.sd).double().log()}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`ResponseFamily`."""
        return Normal(eta, self.noise(values, columns))

    def noise(self, values: Mapping[str, Tensor], columns: Columns) -> Tensor:
        """sigma, broadcast to (..., S, n)."""
        return values["log_noise"].exp() if columns.known is None else columns.known

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`ResponseFamily`."""
        precision = self.noise(values, columns).square().reciprocal()
        return (y - eta) * precision, precision.expand_as(eta)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """sigma."""
        return {} if self.known else {"sd(residual)": values["log_noise"].exp()}


class BinomialFamily(ResponseFamily):
    """y ~ Binomial(trials, logistic(eta)); of one trial where none are said."""

    ratio: ClassVar[str] = "odds ratio"

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`ResponseFamily`."""
        if columns.trials is None:
            return Bernoulli(logits=eta)
        return Binomial(columns.trials.expand_as(eta), logits=eta)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`ResponseFamily`."""
        trials = 1.0 if columns.trials is None else columns.trials
        p = eta.sigmoid()
        return y - trials * p, trials * p * (-eta).sigmoid()


class PoissonFamily(ResponseFamily):
    """y ~ Poisson(exp(eta))."""

    ratio: ClassVar[str] = "rate ratio"

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`ResponseFamily`."""
        return Poisson(eta.exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`ResponseFamily`."""
        rate = eta.exp()
        return y - rate, rate


class GammaFamily(ResponseFamily):
    """y ~ Gamma(shape, shape / mu), mu = exp(eta) its mean and 1 / shape its variance over mu^2."""

    ratio: ClassVar[str] = "ratio of means"

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log shape."""
        return {"log_shape": torch.tensor(0.0)}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`ResponseFamily`."""
        shape = values["log_shape"].exp()
        return Gamma(shape.expand_as(eta), shape * (-eta).exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`ResponseFamily`."""
        shape = values["log_shape"].exp()
        weight = shape * y * (-eta).exp()
        return weight - shape, weight

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The shape."""
        return {"shape": values["log_shape"].exp()}
