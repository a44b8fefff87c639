"""Convolutions whose weights are shared or belong to clients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from .by_example import by_example
from .registry import LAYERS, LayerKind


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d, clients: int = 1) -> Tensor:
    """The layer's convolution with other weights, of several clients side by side."""
    return conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, clients * layer.groups)


def client_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Conv2d) -> Tensor:
    """A convolution whose weights are shared or belong to clients.

    Args:
        x: (S, n, channels, height, width).
        weight: (out, in, h, w) or (S, 1, out, in, h, w).
        bias: (out,), (S, 1, out) or None.
        layer: says stride, padding, dilation and groups.

    Returns:
        (S, n, out, height, width).
    """
    if weight.dim() == 4:
        y = by_example(lambda xs: convolve(xs, weight, None, layer), x)
    else:
        rows = x.shape[0]
        side_by_side = x.transpose(0, 1).flatten(1, 2)  # (n, S channels, ...): a group of channels for each client
        y = convolve(side_by_side, weight.flatten(0, 2), None, layer, rows)
        y = y.unflatten(1, (rows, -1)).transpose(0, 1)
    return y if bias is None else y + bias[..., None, None]


def _apply(layer: nn.Conv2d, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return client_convolution(x, own["weight"], own.get("bias"), layer)


def _alone(layer: nn.Conv2d, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    y = convolve(x, own["weight"], own.get("bias"), layer)
    # With a single channel in, torch does not see which layout is meant.
    return y.contiguous(memory_format=torch.channels_last) if y.shape[1] > 1 else y


def _known(layer: nn.Conv2d) -> bool:
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


LAYERS[nn.Conv2d] = LayerKind(_apply, _alone, _known, sees_pictures=True, by_client=True)
