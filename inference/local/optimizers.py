"""Makers of optimisers, and optimisers for the rows that are left."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


class SGD(torch.optim.SGD):
    """torch's, to the bit, without torch's compiler: its import takes longer than many a fit."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    _step: Any = inspect.unwrap(torch.optim.SGD.step)

    def step(self, closure: Any = None) -> Any:
        """One step."""
        with torch.no_grad():
            return self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # Otherwise torch wraps it for its profiler.


class Adam(torch.optim.Adam):
    """Likewise."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    _step: Any = inspect.unwrap(torch.optim.Adam.step)

    def step(self, closure: Any = None) -> Any:
        """One step."""
        with torch.no_grad():
            return self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> MakeOptimizer:
    """Stochastic gradient descent."""
    return partial(SGD, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)


def adam(lr: float, weight_decay: float = 0.0, beta2: float = 0.999) -> MakeOptimizer:
    """Adam; ``weight_decay`` times the value is added to the gradient, ``beta2`` is its beta_2."""
    return partial(Adam, lr=lr, weight_decay=weight_decay, betas=(0.9, beta2))


@dataclass(frozen=True)
class Decayed:
    """Gradient descent whose steps are shorter in each round: lr decay^(round - 1).

    Args:
        lr: of the first round.
        decay: factor from each round to the next, in (0, 1].
        momentum: of a round's steps.
    """

    lr: float
    decay: float
    momentum: float = 0.0

    def __call__(self, leaves: list[Tensor]) -> torch.optim.Optimizer:
        """The first round's."""
        return self.at(1)(leaves)

    def at(self, number: int) -> MakeOptimizer:
        """A round's, counted from one."""
        return sgd(self.lr * self.decay ** (number - 1), self.momentum)


def decayed_sgd(lr: float, decay: float, momentum: float = 0.0) -> MakeOptimizer:
    """Stochastic gradient descent, the same in each round where ``decay`` is 1."""
    return sgd(lr, momentum) if decay == 1 else Decayed(lr, decay, momentum)


def in_round(make: MakeOptimizer, number: int) -> MakeOptimizer:
    """A round's optimiser, counted from one."""
    return make.at(number) if isinstance(make, Decayed) else make


def narrow_optimizer(optimizer: torch.optim.Optimizer, leaves: list[Tensor]) -> None:
    """Goes on with the rows that are left, of which it remembers what it knew.

    A momentum moves rows without a gradient, too: rows that have finished must not be among its leaves.

    Args:
        optimizer: of leaves (S, ...).
        leaves: the first rows of each of them.
    """
    (group,) = optimizer.param_groups
    for before, after in zip(group["params"], leaves, strict=True):
        state = optimizer.state.pop(before, {})
        optimizer.state[after] = {
            k: v[: len(after)] if torch.is_tensor(v) and v.shape == before.shape else v for k, v in state.items()
        }
    group["params"] = leaves


def step_on_device(optimizer: torch.optim.Optimizer) -> None:
    """One step, of which nothing leaves the device.

    An optimiser's step count is then a tensor beside the values, and its bias corrections are computed from it: in
    double precision, since 1 - beta2 in single precision is wrong in the fifth digit.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # torch's optimisers make their step count in it
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
            optimizer.step()
    finally:
        torch.set_default_dtype(default)
