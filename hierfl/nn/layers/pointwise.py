"""Functions of single numbers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .registry import LAYERS, LayerKind


def _apply(layer: nn.Module, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return layer(x)


def _rises(layer: nn.LeakyReLU) -> bool:
    return layer.negative_slope >= 0


LAYERS[nn.ReLU] = LayerKind(_apply, rises=lambda layer: True)
LAYERS[nn.LeakyReLU] = LayerKind(_apply, rises=_rises)
LAYERS |= dict.fromkeys((nn.Tanh, nn.GELU, nn.Identity), LayerKind(_apply))
