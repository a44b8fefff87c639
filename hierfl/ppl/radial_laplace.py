"""A density that falls with the distance from its centre, not with the distance squared."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints


class RadialLaplace(TorchDistribution):
    """p(z) = exp(-rate |z - centre|) / Z over R^D, with the Euclidean norm: Laplace's distribution where D is 1.

    Z = 2 pi^(D/2) Gamma(D) / (Gamma(D/2) rate^D). At the centre itself the gradient is taken as zero.

    Args:
        centre: (*batch, D).
        rate: above zero.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, centre: Tensor, rate: float) -> None:
        self.centre, self.rate = centre, rate
        super().__init__(centre.shape[:-1], centre.shape[-1:], validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> RadialLaplace:
        """The same over a larger batch shape."""
        return RadialLaplace(self.centre.expand(*batch_shape, *self.event_shape), self.rate)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(value), (*batch)."""
        (d,) = self.event_shape
        log_z = math.log(2) + d / 2 * math.log(math.pi) + math.lgamma(d) - math.lgamma(d / 2) - d * math.log(self.rate)
        return -self.rate * torch.linalg.vector_norm(value - self.centre, dim=-1) - log_z

    @property
    def mean(self) -> Tensor:
        """The centre."""
        return self.centre
