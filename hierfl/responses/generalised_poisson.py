"""Generalised Poisson responses, counts whose variance is a multiple of their mean, with a longer tail than nbinom1's.

    p(y) = theta (theta + lambda y)^(y - 1) exp(-theta - lambda y) / y!,    theta = mu (1 - lambda),    mu = exp(eta)

(Consul and Famoye, Communications in Statistics 21:89, 1992.) The variance is mu / (1 - lambda)^2,
or mu (1 + dispersion). y is the total of a Poisson(theta) number of families, each member of which has Poisson(lambda)
children. Below dispersion 0 the terms do not add up to one: counts that spread less than a Poisson's have no such
density.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Rows
from .counts import NO_END, CountDistribution, CountResponse, Poisson

#: generations of a family that are drawn, at most
MOST_GENERATIONS = 10_000


class GeneralisedPoisson(CountDistribution):
    """The generalised Poisson distribution of mean exp(eta) and variance exp(eta) (1 + dispersion).

    Args:
        eta: (..., S, n).
        dispersion: broadcast to it.
    """

    def __init__(self, eta: Tensor, dispersion: Tensor) -> None:
        self.eta, self.dispersion = eta, dispersion
        super().__init__(torch.broadcast_shapes(eta.shape, dispersion.shape))

    @property
    def children(self) -> Tensor:
        """lambda = 1 - (1 + dispersion)^(-1/2)."""
        return -torch.expm1(-0.5 * torch.log1p(self.dispersion))

    @property
    def log_families(self) -> Tensor:
        """log theta."""
        return self.eta - 0.5 * torch.log1p(self.dispersion)

    @property
    def mean(self) -> Tensor:
        """exp(eta)."""
        return self.eta.exp().expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """mu (1 + dispersion)."""
        return self.mean * (1 + self.dispersion)

    def log_prob(self, value: Tensor) -> Tensor:
        """See the module, with theta + lambda y over theta as 1 + y lambda / theta."""
        log_theta, passed = self.log_families, self.children * value
        more = torch.log1p(passed * (-log_theta).exp())
        return value * log_theta + (value - 1) * more - log_theta.exp() - passed - torch.lgamma(value + 1)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Generation by generation."""
        shape = sample_shape + self.batch_shape
        born = Poisson(self.log_families.exp().expand(shape)).sample()
        children, total = self.children.expand(shape), born
        for _ in range(MOST_GENERATIONS):
            if not born.any():
                break
            born = Poisson(children * born).sample()
            total = total + born
        return total


class GeneralisedPoissonResponse(CountResponse):
    """y ~ GeneralisedPoisson(exp(eta), dispersion), whose log density bends both ways."""

    name = "generalised-poisson"
    about = "mean mu = exp(eta), variance mu (1 + dispersion), a longer tail than nbinom1's: *dispersion*"
    ratio = "rate ratio"
    order = 47
    concave: ClassVar[bool] = False

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log dispersion."""
        return {"log_dispersion": torch.tensor(0.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return GeneralisedPoisson(eta, values["log_dispersion"].exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        fn = GeneralisedPoisson(eta, values["log_dispersion"].exp())
        log_theta = fn.log_families
        # of y the share that founded a family
        share = (-torch.log1p(fn.children * y * (-log_theta).exp())).exp()
        theta = log_theta.exp()
        return 1 + (y - 1) * share - theta, theta - (y - 1) * share * (1 - share)

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The Poisson's, of the number of families."""
        return GeneralisedPoisson(eta, values["log_dispersion"].exp()).log_families.exp()

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The dispersion."""
        return {"dispersion": values["log_dispersion"].exp()}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        return "at its lower bound: no more spread than a Poisson's" if value < 1 / NO_END else ""
