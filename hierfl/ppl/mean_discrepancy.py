"""How far two samples are from one distribution, and a factor that holds them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

#: variances of the Gaussian kernels that are summed
BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)


def squared_mmd(x: Tensor, y: Tensor, mask: Tensor | None = None, bandwidths: Sequence[float] = BANDWIDTHS) -> Tensor:
    """The squared maximum mean discrepancy of two samples, (...), never below zero.

    mean k(x, x') + mean k(y, y') - 2 mean k(x, y), pairs of an example with itself included (the biased statistic of
    Gretton et al., JMLR 2012, Eq. 5), with k(a, b) = sum over bandwidths s of exp(-|a - b|^2 / (2 s)). Distances are
    taken by differences: from inner products a small one would be rounding error.

    Args:
        x, y: (..., n, D).
        mask: which of the examples there are, (..., n), in both samples alike; None for all.
        bandwidths: s.
    """
    present = x.new_ones(x.shape[:-1]) if mask is None else mask.to(x)
    weight = present / present.sum(-1, keepdim=True)

    def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square()
        kernels = sum((squares / (-2 * s)).exp() for s in bandwidths)
        assert isinstance(kernels, Tensor)
        return (weight * (kernels @ weight[..., None]).squeeze(-1)).sum(-1)

    return mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y)


class SameDistribution(TorchDistribution):
    """The factor exp(-strength MMD^2(z, reference)) of whole samples z (n, D): near 1 where they are alike.

    It has no normaliser: it is there for an objective, and is computed where its log density is asked for alone.

    Args:
        reference: (*batch, n, D).
        strength: (*batch).
        mask: which of the n there are, (*batch, n); None for all.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.independent(constraints.real, 2)
    has_rsample = False

    def __init__(self, reference: Tensor, strength: Tensor, mask: Tensor | None = None) -> None:
        self.reference, self.strength, self.mask = reference, strength, mask
        super().__init__(reference.shape[:-2], reference.shape[-2:], validate_args=False)

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> SameDistribution:
        """The same over a larger batch shape."""
        mask = None if self.mask is None else self.mask.expand(*batch_shape, -1)
        reference = self.reference.expand(*batch_shape, *self.event_shape)
        return SameDistribution(reference, self.strength.expand(batch_shape), mask)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the factor, (*batch)."""
        return -self.strength * squared_mmd(value, self.reference, self.mask)
