"""Modules without batch norm, for networks that are no chain of known layers."""

from __future__ import annotations

import copy
import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..errors import UserError, unknown

Instead = Literal["affine", "group"]
#: of torch
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


class ChannelAffine(nn.Module):
    """Each channel times a weight, plus a bias.

    Args:
        weight, bias: initial values, (C,).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the output for x (n, C, ...)."""
        shape = (-1, *[1] * (x.dim() - 2))
        return x * self.weight.view(shape) + self.bias.view(shape)


def without_batch_norm(module: nn.Module, instead: Instead, groups: int = 8) -> nn.Module:
    """A copy of a module with something else instead of each batch norm.

    Args:
        module: any, such as a ResNet.
        instead: "affine" normalises by the running statistics as they are, so that a pretrained network computes what
            it did in ``eval()``; "group" puts ``nn.GroupNorm`` there, which normalises each example by itself.
        groups: of ``nn.GroupNorm``, at most; a layer without pictures has one.

    Raises:
        UserError: for "affine" where there are no running statistics.
    """
    if instead not in get_args(Instead):
        raise unknown("value of instead", instead, get_args(Instead))
    made = copy.deepcopy(module)
    if isinstance(made, BATCH_NORMS):
        return _instead(made, instead, groups)
    for parent in [*made.modules()]:
        for key, part in parent.named_children():
            if isinstance(part, BATCH_NORMS):
                setattr(parent, key, _instead(part, instead, groups))
    return made


def _instead(layer: BatchNorm, instead: Instead, groups: int) -> nn.Module:
    channels = layer.num_features
    ones, zeros = torch.ones(channels), torch.zeros(channels)
    weight = ones if layer.weight is None else layer.weight.detach()
    bias = zeros if layer.bias is None else layer.bias.detach()
    if instead == "affine":
        if layer.running_mean is None or layer.running_var is None:
            raise UserError("batch norm without running statistics has no affine to stand for it: 'group' does")
        weight = weight * (layer.running_var + layer.eps).rsqrt()
        made: nn.Module = ChannelAffine(weight, bias - weight * layer.running_mean)
    else:  # a group of one number would be its own mean
        groups = 1 if isinstance(layer, nn.BatchNorm1d) else math.gcd(channels, groups)
        made = nn.GroupNorm(groups, channels, layer.eps)
        made.weight.data, made.bias.data = weight.clone(), bias.clone()
    return made.requires_grad_(layer.weight is None or layer.weight.requires_grad)
