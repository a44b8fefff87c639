"""The last layer as a function of one flat vector."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .layers.linear import client_linear
from .precision import networks_output


@dataclass(frozen=True)
class LinearHead:
    """The last layer as a function of one flat vector of d = outputs (features + 1) numbers, weight before bias.

    Without a bias they are d = outputs features.
    """

    features: int
    outputs: int
    bias: bool = True

    @property
    def d(self) -> int:
        """The number of the head's parameters."""
        return self.outputs * (self.features + self.bias)

    def __call__(self, w: Tensor, z: Tensor) -> Tensor:
        """Outputs (..., S, n, outputs) for w (..., d) and features z (S, n, features)."""
        cut = self.outputs * self.features
        weight = w[..., :cut].unflatten(-1, (self.outputs, self.features))
        return networks_output(lambda: client_linear(z, weight, w[..., cut:] if self.bias else None), z.device)
