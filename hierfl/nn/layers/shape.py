"""Layers that change the shape alone."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .registry import LAYERS, LayerKind


def _flatten(layer: nn.Flatten, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return x.flatten(2)


def _flattens_all(layer: nn.Flatten) -> bool:
    return (layer.start_dim, layer.end_dim) == (1, -1)


def _first_dimension(layer: nn.Unflatten) -> bool:
    return layer.dim == 1


LAYERS[nn.Flatten] = LayerKind(_flatten, known=_flattens_all, flat=True)
LAYERS[nn.Unflatten] = LayerKind(known=_first_dimension)
