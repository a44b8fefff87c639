"""The shape k of the tail of importance weights, for many rows at once.

The largest min(S / 5, 3 sqrt(S)) weights of S are taken for draws of a generalised Pareto distribution above the next
one; its shape is estimated by the empirical Bayes rule of Zhang and Stephens (2009), drawn to 1/2 as by ten more draws
(Vehtari et al., 2024). ArviZ has the same for one row; this needs torch alone, and so runs at sites.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: fewer weights than this in the tail say nothing
FEWEST = 5


def k_hat(log_weights: Tensor) -> Tensor:
    """The shape k of weights along the last dimension, (..., S) to (...): inf where too few are above 0, 0 where all
    agree.

    Args:
        log_weights: but for a constant; -inf where a weight is 0.
    """
    rows = log_weights.reshape(-1, log_weights.shape[-1]).double()
    top = rows.amax(-1, keepdim=True)
    weights = (rows - torch.where(top.isfinite(), top, 0.0)).exp().sort(-1).values
    size = rows.shape[-1]
    tail = math.ceil(min(0.2 * size, 3 * math.sqrt(size)))
    if tail < FEWEST or tail >= size:
        return torch.full_like(log_weights[..., 0], math.inf)
    excess = weights[:, -tail:] - weights[:, -tail - 1, None]
    shape = _shape(excess.clamp_min(1e-300))
    # Without weights above 0, or with one that has all of it, there is no tail to fit.
    shape = torch.where((excess > 0).sum(-1) < FEWEST, math.inf, shape)
    alike = weights[:, 0] >= 1 - 1e-9
    return torch.where(alike, 0.0, shape).reshape(log_weights.shape[:-1]).to(log_weights)


def _shape(excess: Tensor) -> Tensor:
    """The shape of sorted excesses (rows, n), (rows,)."""
    n = excess.shape[-1]
    many = 30 + int(math.sqrt(n))
    grid = 1 - torch.sqrt(many / (torch.arange(1, many + 1).to(excess) - 0.5))
    b = grid / (3 * excess[:, int(n / 4 + 0.5) - 1, None]) + 1 / excess[:, -1:]
    k = torch.log1p(-b[..., None] * excess[:, None]).mean(-1)
    height = n * ((-b / k).log() - k - 1)
    weight = height.softmax(-1)
    weight = torch.where(weight >= 10 * torch.finfo(weight.dtype).eps, weight, 0.0)
    chosen = (b * weight).sum(-1) / weight.sum(-1)
    shape = torch.log1p(-chosen[:, None] * excess).mean(-1)
    return (n * shape + 5) / (n + 10)
