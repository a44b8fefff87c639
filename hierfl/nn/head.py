"""The last layer as a function of one flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .layers.linear import client_linear
from .precision import networks_output


@dataclass(frozen=True)
class LinearHead:
    """The last layer as a function of one flat vector of d = outputs (features + 1) numbers, weight before bias.

    Without a bias they are d = outputs features. With ``contrasts`` they are coordinates of the logits' differences
    alone, d = (outputs - 1) (features + 1): a shift of all of them, which changes no probability, has none. The
    contrasts are orthonormal, so that an isotropic prior of one is an isotropic prior of the other.
    """

    features: int
    outputs: int
    bias: bool = True
    contrasts: bool = False

    @property
    def rows(self) -> int:
        """Rows of the weight matrix: the outputs, or one fewer."""
        return self.outputs - self.contrasts

    @property
    def d(self) -> int:
        """The number of the head's parameters."""
        return self.rows * (self.features + self.bias)

    @property
    def inputs(self) -> int:
        """How many numbers the base network gives."""
        return self.features

    @property
    def adapter_names(self) -> list[str]:
        """Names of the numbers before the last layer's; none of a head that is one layer."""
        return []

    def begun(self, head: Tensor) -> Tensor:
        """The initial head, (d,), from standard normals (d,)."""
        return head

    def __call__(self, w: Tensor, z: Tensor) -> Tensor:
        """Outputs (..., S, n, outputs) for w (..., d) and what the base network gives, z (S, n, inputs)."""
        return self.last(w, self.reads(w, z))

    def reads(self, w: Tensor, z: Tensor) -> Tensor:
        """What the last layer reads, (..., S, n, features): the base network's features."""
        return z

    def last(self, w: Tensor, z: Tensor) -> Tensor:
        """Outputs (..., S, n, outputs) of the last layer alone, for w (..., d) and features z (S, n, features)."""
        cut = self.rows * self.features
        weight = w[..., :cut].unflatten(-1, (self.rows, self.features))
        outputs = networks_output(lambda: client_linear(z, weight, w[..., cut:] if self.bias else None), z.device)
        return outputs @ orthonormal_contrasts(self.outputs).to(outputs) if self.contrasts else outputs

    def design(self, z: Tensor) -> Tensor:
        """Features (S, n, features) with a column of ones for the bias, where there is one: (S, n, p)."""
        return torch.cat([z, z.new_ones((*z.shape[:-1], 1))], -1) if self.bias else z

    @property
    def matrix_order(self) -> Tensor:
        """Places (d,) in the flat vector of the weight matrix with the bias as its last column, row by row."""
        cut = self.rows * self.features
        weight = torch.arange(cut).view(self.rows, self.features)
        bias = torch.arange(cut, self.d).view(self.rows, -1)
        return torch.cat([weight, bias], 1).flatten()


@lru_cache
def orthonormal_contrasts(classes: int) -> Tensor:
    """Rows (classes - 1, classes) that are orthonormal and sum to zero (Helmert's); float64."""
    k = torch.arange(1, classes, dtype=torch.float64)[:, None]
    column = torch.arange(classes, dtype=torch.float64)
    rows = torch.where(column < k, 1.0, torch.where(column == k, -k, 0.0))
    return rows / (k * (k + 1)).sqrt()
