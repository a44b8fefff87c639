"""Draws of a guide as functions of standard normal numbers: the same at every engine, and with gradients.

A distribution of torch or Pyro draws by filling tensors with random numbers. Within :class:`FromNoise` it takes the
next ones of a vector of standard normals instead, so that a run of the guide is a function of its parameters and of
that vector, one draw and one client at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from hierfl.errors import UserError

#: what :class:`FromNoise` reads before it is known how much is needed
Taken = dict[str, int]


class FromNoise(TorchFunctionMode):
    """Takes random numbers from vectors, and parameters of modules from given tensors.

    Args:
        noise: standard normals by stream, (n,) each; None where they are only counted, and all are 0.
        modules: tensors instead of parameters, by the parameters' ids.
        outside: value of every standard normal outside of sites, where only first values of parameters are random; None
            draws them.
    """

    def __init__(self, noise: Mapping[str, Tensor] | None, modules: dict[int, Tensor], outside: float | None) -> None:
        super().__init__()
        self.noise, self.modules, self.outside = noise, modules, outside
        self.taken: Taken = {}
        #: which stream is read, and the site that reads it; None outside of sites
        self.stream: str | None = None
        self.site = ""

    def _next(self, shape: Sequence[int]) -> Tensor:
        if self.stream is None:
            return torch.full(tuple(shape), self.outside or 0.0, dtype=torch.float64)
        first, many = self.taken.get(self.stream, 0), math.prod(shape)
        self.taken[self.stream] = first + many
        if self.noise is None:
            return torch.zeros(tuple(shape), dtype=torch.float64)
        numbers = self.noise[self.stream][first : first + many]
        if len(numbers) < many:
            raise UserError(f"the guide's site {self.site!r} draws more numbers of some batches than of others")
        return numbers.reshape(tuple(shape))

    def _unit(self, shape: Sequence[int]) -> Tensor:
        return torch.special.ndtr(self._next(shape)).clamp(1e-15, 1 - 1e-15)

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Numbers of the vector instead of random ones."""
        kwargs = dict(kwargs or {})
        if func in REFUSED:
            raise UserError(
                f"the guide's site {self.site!r} has a distribution whose draws are no function of normal numbers, "
                "such as Gamma, Beta or Dirichlet: take LogNormal, or a TransformedDistribution"
            )
        made = REPLACEMENTS.get(func)
        if made is not None and (self.stream is not None or self.outside is not None):
            return made(self, *args, **{k: v for k, v in kwargs.items() if k in ("low", "high", "mean", "std")})
        if self.modules and func not in OF_THE_MODULE:
            args, kwargs = tree_map(self._given, (tuple(args), kwargs))
        return func(*args, **kwargs)

    def _given(self, value: Any) -> Any:
        return self.modules.get(id(value), value) if isinstance(value, Tensor) else value


def _sizes(args: Sequence[Any]) -> Sequence[int]:
    return args[0] if len(args) == 1 and not isinstance(args[0], int) else args


def _uniform(mode: FromNoise, like: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * mode._unit(like.shape)


def _normal(mode: FromNoise, like: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return mean + std * mode._next(like.shape)


def _normal_of(mode: FromNoise, mean: Tensor, std: Tensor) -> Tensor:
    return mean + std * mode._next(torch.broadcast_shapes(mean.shape, std.shape))


#: what fills a tensor or makes one, and what takes its numbers from the vector
REPLACEMENTS: Mapping[Any, Callable[..., Tensor]] = {
    Tensor.normal_: _normal,
    Tensor.uniform_: _uniform,
    Tensor.exponential_: lambda mode, like, rate=1.0: -mode._unit(like.shape).log() / rate,
    Tensor.cauchy_: lambda mode, like, at=0.0, by=1.0: at + by * (math.pi * (mode._unit(like.shape) - 0.5)).tan(),
    torch.normal: _normal_of,
    torch.randn: lambda mode, *sizes: mode._next(_sizes(sizes)),
    torch.rand: lambda mode, *sizes: mode._unit(_sizes(sizes)),
    torch.randn_like: lambda mode, like: mode._next(like.shape),
    torch.rand_like: lambda mode, like: mode._unit(like.shape),
}
#: what is asked of a module's parameter itself
OF_THE_MODULE = (Tensor.requires_grad.__get__,)  # type: ignore[attr-defined]
#: draws that are no such function
REFUSED = (
    torch._standard_gamma, torch._sample_dirichlet, torch.poisson, torch.bernoulli, torch.multinomial, torch.binomial,
)  # fmt: skip
