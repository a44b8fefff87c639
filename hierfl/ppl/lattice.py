"""A few points that represent a standard normal."""

from __future__ import annotations

import torch
from torch import Tensor

#: how many
POINTS = 9


def standard_points(count: int) -> Tensor:
    """Points (POINTS, count) of equal weight with mean 0 and covariance I, float64; count is at most five.

    Quantiles of a normal in one dimension; in several a lattice of them, turned to have exactly that covariance.
    """
    position = torch.arange(POINTS, dtype=torch.float64)[:, None]
    strides = torch.tensor([1, 4, 2, 7, 5])[:count]
    z = torch.special.ndtri((position * strides % POINTS + 0.5) / POINTS)
    spread = torch.linalg.cholesky(z.mT @ z / POINTS)
    return torch.linalg.solve_triangular(spread, z.mT, upper=False).mT
