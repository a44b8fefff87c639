"""ResNet-18, of any width: torchvision's layers, names and order, so that its files of weights fit."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ...errors import UserError
from .registry import network

#: residual blocks in each of the four stages
BLOCKS = 2


def resnet18_layers(channels: int, width: int, small: bool) -> nn.Sequential:
    """The layers below the last one of ``torchvision.models.resnet18``, with its batch norm.

    Args:
        channels: of the pictures.
        width: channels of the first stage; torchvision's has 64.
        small: for pictures of about 32 pixels: a first convolution of 3x3 without stride, and no pooling behind it.
    """
    from torchvision.models.resnet import BasicBlock, conv1x1

    def stage(below: int, above: int, stride: int) -> nn.Sequential:
        change = nn.Sequential(conv1x1(below, above, stride), nn.BatchNorm2d(above)) if below != above else None
        first = BasicBlock(below, above, stride, change)
        return nn.Sequential(first, *(BasicBlock(above, above) for _ in range(BLOCKS - 1)))

    first = nn.Conv2d(channels, width, *((3, 1, 1) if small else (7, 2, 3)), bias=False)
    parts: list[tuple[str, nn.Module]] = [("conv1", first), ("bn1", nn.BatchNorm2d(width)), ("relu", nn.ReLU())]
    parts += [] if small else [("maxpool", nn.MaxPool2d(3, 2, 1))]
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    for k, (below, above) in enumerate(itertools.pairwise(widths), start=1):
        parts.append((f"layer{k}", stage(below, above, 1 if k == 1 else 2)))
    parts += [("avgpool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten())]
    return nn.Sequential(OrderedDict(parts))


def _made(event: torch.Size, widths: Sequence[list[int]], small: bool) -> nn.Sequential:
    if len(widths[0]) != 1:
        raise UserError(f"network resnet18 takes one width, as in resnet18:64; got {','.join(map(str, widths[0]))}")
    return resnet18_layers(event[0], widths[0][0], small)


@network(
    "resnet18:W", "torchvision's ResNet-18 of width W (its own has 64), group norm instead of batch norm", images=True,
    norm="group",
)  # fmt: skip
def resnet18(
    event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float
) -> nn.Sequential:
    """Builds a ResNet-18 for pictures of about 224 pixels."""
    return _made(event, widths, small=False)


@network("resnet18-small:W", "the same for pictures of about 32 pixels: a 3x3 convolution first, no pooling behind it",
         images=True, norm="group")  # fmt: skip
def resnet18_small(
    event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float
) -> nn.Sequential:
    """Builds a ResNet-18 for pictures of about 32 pixels."""
    return _made(event, widths, small=True)
