"""Random numbers under vmap from distributions that fill or resize a tensor, which vmap cannot do for each draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _uniform(like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    u = torch.rand(like.shape, dtype=like.dtype, device=like.device)
    return low + (high - low) * u


def _inner(like: Tensor) -> Tensor:
    """Uniform in (0, 1), without both ends."""
    return _uniform(like).clamp(torch.finfo(like.dtype).tiny, 1 - torch.finfo(like.dtype).eps)


def _normal(like: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * torch.randn(like.shape, dtype=like.dtype, device=like.device)


def _exponential(like: Tensor, lambd: float = 1.0) -> Tensor:
    return -_inner(like).log() / lambd


def _cauchy(like: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return median + sigma * (math.pi * (_inner(like) - 0.5)).tan()


def _binomial(count: Tensor, prob: Tensor) -> Tensor:
    """Both of all draws: vmap resizes its result where one of them is of all draws and the other is not."""
    return torch.binomial(count + 0 * prob, prob + 0 * count)


#: what fills a tensor, and what makes a new one of the same distribution
REPLACEMENTS: Mapping[Any, Callable[..., Tensor]] = {
    Tensor.uniform_: _uniform,
    Tensor.normal_: _normal,
    Tensor.exponential_: _exponential,
    Tensor.cauchy_: _cauchy,
    torch.binomial: _binomial,
}


class Fresh(TorchFunctionMode):
    """Gives each draw of a vmap numbers of its own where a distribution fills a tensor in place."""

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """New numbers instead of filled ones; all else as it is."""
        made = REPLACEMENTS.get(func)
        return (made or func)(*args, **(kwargs or {}))
