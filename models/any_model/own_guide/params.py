"""Parameters of a guide as two vectors of unconstrained numbers: the shared ones, and a client's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Param:
    """One ``pyro.param`` of a guide, or a parameter of a module in it.

    Attributes:
        name: in the guide.
        shape: of its value for one client.
        free: its first value in the unconstrained space.
        transform: from there to its constraint.
        personal: whether it has a dimension of clients.
        module: the id of the module's parameter that it represents; None of a ``pyro.param``.
    """

    name: str
    shape: tuple[int, ...]
    free: Tensor
    transform: Any
    personal: bool
    module: int | None = None


@dataclass(frozen=True)
class Packed:
    """Parameters, in the order of their vector.

    Args:
        params: all shared, or all personal.
    """

    params: Sequence[Param]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(math.prod(param.free.shape) for param in self.params)

    @property
    def start(self) -> Tensor:
        """The first values of the parameters, (size,)."""
        return torch.cat([param.free.flatten() for param in self.params]) if self.params else torch.zeros(0).double()

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Values by name, each within its constraint, from the vector (size,)."""
        parts = vector.split([param.free.numel() for param in self.params]) if self.params else ()
        return {
            param.name: param.transform(part.reshape(param.free.shape))
            for param, part in zip(self.params, parts, strict=True)
        }
