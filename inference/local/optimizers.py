"""Makers of optimisers, and optimisers for the rows that are left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> MakeOptimizer:
    """Stochastic gradient descent."""
    return partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)


def adam(lr: float, weight_decay: float = 0.0, beta2: float = 0.999) -> MakeOptimizer:
    """Adam; ``weight_decay`` times the value is added to the gradient, ``beta2`` is its beta_2."""
    return partial(torch.optim.Adam, lr=lr, weight_decay=weight_decay, betas=(0.9, beta2))


def slice_optimizer(
    old: torch.optim.Optimizer | None, make: MakeOptimizer, leaves: list[Tensor], active: int
) -> torch.optim.Optimizer:
    """An optimiser for the rows that are left, which remembers what the old one knew of them.

    A momentum moves rows without a gradient, too: rows that have finished must not be among its leaves.
    """
    new = make(leaves)
    if old is not None:
        for before, after in zip(old.param_groups[0]["params"], leaves, strict=True):
            new.state[after] = {
                k: v[:active] if torch.is_tensor(v) and v.shape == before.shape else v
                for k, v in old.state[before].items()
            }
    return new
