"""Pooling."""

from __future__ import annotations

from torch import nn

from .registry import LAYERS, LayerKind

LAYERS |= dict.fromkeys(
    (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), LayerKind(sees_pictures=True, by_client=True)
)
