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


class NormalOfRoot(MultivariateNormal):
    """N(loc, root root^T).

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
