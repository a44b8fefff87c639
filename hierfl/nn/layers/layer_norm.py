"""Layer norm: each example by itself, so that nothing is remembered of a batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.functional import layer_norm

from .registry import LAYERS, LayerKind


def _apply(layer: nn.LayerNorm, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    y = layer_norm(x, layer.normalized_shape, eps=layer.eps)
    if "weight" in own:
        y = y * own["weight"]
    return y + own["bias"] if "bias" in own else y


def _of_features(layer: nn.LayerNorm) -> bool:
    """Whether it normalises a vector of features (its weights may then be a client's, (S, 1, features))."""
    return len(layer.normalized_shape) == 1


LAYERS[nn.LayerNorm] = LayerKind(_apply, known=_of_features, flat=True)
