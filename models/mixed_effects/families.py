"""The responses of a generalised linear mixed model: their distributions, and derivatives of their log densities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from pyro.distributions import Bernoulli, Normal, Poisson
from torch import Tensor

from hierfl.data.formula.design import Columns


class ResponseFamily(Protocol):
    """A response with a linear predictor eta and a few numbers of its own.

    Attributes:
        parameters: their names, and where they begin: logarithms or the like, on the real line.
        labels: what a table of effects calls what they stand for.
        ratio: what exp(beta) is; empty where it is nothing of the kind.
    """

    @property
    def parameters(self) -> Mapping[str, float]:
        """See above."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """See above."""
        ...

    @property
    def ratio(self) -> str:
        """See above."""
        ...

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """p(y | eta), (..., S, n), as a Pyro distribution."""
        ...

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """Of log p(y | eta): its derivative in eta, and minus its second one, which is nowhere below zero."""
        ...


@dataclass(frozen=True)
class GaussianFamily:
    """y ~ N(eta, sigma^2), sigma learned or known for each row."""

    known: bool
    sd: float
    ratio: ClassVar[str] = ""
    labels: ClassVar[Mapping[str, str]] = {"log_noise": "sd(residual)"}

    @property
    def parameters(self) -> Mapping[str, float]:
        """log sigma, where it is learned."""
        return {} if self.known else {"log_noise": float(torch.tensor(self.sd).double().log())}

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


@dataclass(frozen=True)
class Canonical:
    """A family with its canonical link, and without numbers of its own."""

    parameters: ClassVar[Mapping[str, float]] = {}
    labels: ClassVar[Mapping[str, str]] = {}


@dataclass(frozen=True)
class BinomialFamily(Canonical):
    """y ~ Bernoulli(logistic(eta))."""

    ratio: ClassVar[str] = "odds ratio"

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Any:
        """See :class:`ResponseFamily`."""
        return Bernoulli(logits=eta)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`ResponseFamily`."""
        p = eta.sigmoid()
        return y - p, p * (-eta).sigmoid()


@dataclass(frozen=True)
class PoissonFamily(Canonical):
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
