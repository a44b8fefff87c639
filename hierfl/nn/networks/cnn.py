"""Networks with convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from .mlp import with_hidden_layers
from .registry import network


@network(
    "cnn:C,C,...:H,H,...", "5x5 convolutions with C channels, each with ReLU and 2x2 max-pool; then hidden layers H",
    images=True, options=("dropout", "leaky"),
)  # fmt: skip
def cnn(event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float) -> nn.Sequential:
    """Builds the network of pFedVEM's CIFAR-10 experiments."""
    layers: list[nn.Module] = []
    for below, above in itertools.pairwise([event[0], *widths[0]]):
        layers += [nn.Conv2d(below, above, 5), relu(), nn.MaxPool2d(2)]
    return with_hidden_layers(layers, event, widths[1], relu, drop)


@network(
    "convnet:C,C,...", "3x3 convolutions, ReLU, each but the last with 2x2 max-pool (padding 1); global average pool",
    images=True, options=("leaky",),
)  # fmt: skip
def convnet(
    event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float
) -> nn.Sequential:
    """Builds the network of pFedVEM's CIFAR-100 and SUN397 experiments."""
    layers: list[nn.Module] = []
    for k, (below, above) in enumerate(itertools.pairwise([event[0], *widths[0]]), start=1):
        layers += [nn.Conv2d(below, above, 3, padding=1), relu()]
        layers += [nn.MaxPool2d(2, 2, padding=1)] if k < len(widths[0]) else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@network(
    "bncnn:C,C,...:H,H,...",
    "5x5 convolutions (padding 2) with C channels, batch norm, ReLU, all but the last with 2x2 max-pool; then hidden "
    "layers H with batch norm",
    images=True, options=("leaky",),
)  # fmt: skip
def bncnn(event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float) -> nn.Sequential:
    """Builds the network of pFedV's Digit-Five experiments."""
    layers: list[nn.Module] = []
    for k, (below, above) in enumerate(itertools.pairwise([event[0], *widths[0]]), start=1):
        layers += [nn.Conv2d(below, above, 5, padding=2), nn.BatchNorm2d(above), relu()]
        layers += [nn.MaxPool2d(2)] if k < len(widths[0]) else []
    return with_hidden_layers(layers, event, widths[1], relu, norm=True)
