"""Bumps of four classes, pFedVMP's method on them, and its network as anybody would write it."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hierfl import Federation
from hierfl.models import PFedVMP
from hierfl.nn.networks.build import architecture

SIZES, CLASSES = (14, 9, 6), 4


def bumps(sizes: tuple[int, ...] = SIZES, seed: int = 0, test: float = 0.0) -> Federation:
    """Four bumps in five dimensions; clients have two or three of them, the last class belongs to the first alone."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(n) % (3 - (j > 0)) + (j > 0) * (j - 1) for j, n in enumerate(sizes)])
    y[: sizes[0]][y[: sizes[0]] == 2] = 3
    x = 3 * np.eye(5)[y] + rng.normal(size=(len(y), 5))
    who = np.repeat([f"c{j}" for j in range(len(sizes))], sizes)
    return Federation.from_arrays(x.astype(np.float32), y, who, test=test)


def method_of(fed: Federation, **settings: object) -> PFedVMP:
    return PFedVMP(architecture("mlp:6", fed), **settings)


class Torch(nn.Module):
    """The network as anybody would write it, for one client."""

    def __init__(self, method: PFedVMP, values: dict[str, Tensor], head: Tensor) -> None:
        super().__init__()
        self.base = copy.deepcopy(method.network.base.module).double().requires_grad_(True)
        f = method.features
        with torch.random.fork_rng(devices=[]):
            self.head = nn.Linear(f, CLASSES).double()
        with torch.no_grad():
            for name, p in self.base.named_parameters():
                p.copy_(values[f"base.{name}"])
            self.head.weight.copy_(head[: CLASSES * f].view(CLASSES, f))
            self.head.bias.copy_(head[CLASSES * f :])

    def loss(self, x: Tensor, y: Tensor, xi: float, mu: Tensor, known: Tensor) -> Tensor:
        """Eq. 9, summed, the distance summed over features."""
        z = self.base(x)
        distance = (z - mu[y]).square().sum(-1) * known[y]
        return (cross_entropy(self.head(z), y, reduction="none") + xi * distance).sum()
