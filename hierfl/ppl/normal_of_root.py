"""The multivariate normal distribution of a root of its covariance, without what torch loads to make one.

torch asks its compiler's module of symbolic shapes for the shape of the batch. That loads SymPy: 0.3 CPU s of the first
fit of a process.
"""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions import MultivariateNormal
from torch import Tensor

from ..shapes import broadcast_shapes

#: a standard deviation of zero has no density: beside the largest entry of the root it is taken for this much, the root
#: of what rounding is, so that rounding errors over it are as small as it is
LEAST_DIAGONAL = 1e-8


def with_least_diagonal(root: Tensor) -> Tensor:
    """A root (..., q, q) whose diagonal is at least :data:`LEAST_DIAGONAL` of its largest entry."""
    least = LEAST_DIAGONAL * root.detach().abs().amax((-1, -2)).clamp_min(LEAST_DIAGONAL)
    diagonal = root.diagonal(dim1=-2, dim2=-1)
    return root + torch.diag_embed(diagonal.maximum(least.unsqueeze(-1)) - diagonal)


class NormalOfRoot(MultivariateNormal):
    """N(loc, root root^T). Its density is that of :func:`with_least_diagonal`.

    A root that is singular but for rounding, as at a correlation of one, would divide rounding errors by each other.

    Args:
        loc: (..., q).
        root: lower triangular, (..., q, q).
    """

    def __init__(self, loc: Tensor, root: Tensor, validate_args: bool | None = None) -> None:
        batch = broadcast_shapes(root.shape[:-2], loc.shape[:-1])
        self.scale_tril, self.loc = root.expand(*batch, -1, -1), loc.expand(*batch, -1)
        self._unbroadcasted_scale_tril = root
        torch.distributions.Distribution.__init__(self, batch, loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> NormalOfRoot:
        """See :meth:`torch.distributions.Distribution.expand`."""
        new = NormalOfRoot.__new__(NormalOfRoot) if _instance is None else _instance
        expanded: NormalOfRoot = super().expand(batch_shape, new)
        return expanded

    def log_prob(self, value: Tensor) -> Tensor:
        """See :meth:`torch.distributions.Distribution.log_prob`."""
        regular = NormalOfRoot(self.loc, with_least_diagonal(self._unbroadcasted_scale_tril), self._validate_args)
        density: Tensor = super(NormalOfRoot, regular).log_prob(value)
        return density
