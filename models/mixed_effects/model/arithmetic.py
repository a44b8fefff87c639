"""Sums of a few products, independent effects, and numbers that can be sent."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hierfl.ppl.normal_of_root import NormalOfRoot, with_least_diagonal
from hierfl.shapes import broadcast_shapes


def of_groups(values: Tensor, index: Tensor) -> Tensor:
    """Each row's group's, (..., S, n, q).

    Args:
        values: of all groups, (groups, q), or (..., S or 1, 1, groups, q).
        index: each row's group, (S, n).
    """
    values = values[None] if values.dim() == 2 else values.squeeze(-3)
    entries = index.long()[..., None].expand(*index.shape, values.shape[-1])
    lead = broadcast_shapes(values.shape[:-2], index.shape[:-1])
    return values.expand(*lead, *values.shape[-2:]).gather(-2, entries.expand(*lead, *entries.shape[-2:]))


def each(prior: NormalOfRoot, groups: int) -> Any:
    """So many independent ones, an event of shape (groups, q)."""
    root = prior.scale_tril.unsqueeze(-3)
    zero = root.new_zeros(root.shape[-1])
    return NormalOfRoot(zero, root).expand([*root.shape[:-3], groups]).to_event(1)


def linear(columns: Tensor, coefficients: Tensor) -> Tensor:
    """The sum of columns (..., p) times coefficients (..., p), one after the other.

    Along a last dimension of a few numbers torch sums eight times slower than it adds, measured on a CPU.
    """
    total = columns[..., 0] * coefficients[..., 0]
    for k in range(1, columns.shape[-1]):
        total = total + columns[..., k] * coefficients[..., k]
    return total


def of_smooth(effects: Tensor) -> Tensor:
    """Coefficients (..., 1, K) of a smooth term's columns, the same in all rows, of effects (..., K + 1, 1)."""
    return effects[..., 1:, 0].unsqueeze(-2)


def curve(columns: Tensor, values: Tensor) -> Tensor:
    """What a smooth term adds to rows with columns (S, n, K), (..., S, n); values as for :func:`of_groups`."""
    return linear(columns, of_smooth(values if values.dim() == 2 else values.squeeze(-3)))


def log_normal(values: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """The sum of log N(values | mean, sd^2) along the last dimension; flat, and zero, where sd is infinite."""
    log_density = -0.5 * ((values - mean) / sd).square() - sd.log() - 0.5 * math.log(2 * math.pi)
    return torch.where(sd.isfinite(), log_density, 0.0).sum(-1)


#: the log likelihood of a client where it is no number: low, and such that sums over clients are numbers
IMPOSSIBLE = -1e100


def sound(values: Tensor) -> Tensor:
    """Whether numbers can be sent: squares of others overflow, and a message that holds one is refused as a whole."""
    return values.abs() < -IMPOSSIBLE


def positive(root: Tensor) -> Tensor:
    """The root of the same covariance as L (..., q, q), with a diagonal above zero."""
    sign = torch.where(root.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(root)
    root = root * sign.unsqueeze(-2)
    return with_least_diagonal(root)
