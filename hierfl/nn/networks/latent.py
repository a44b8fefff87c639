"""Networks with latent features: cut into an encoder and the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...errors import UserError
from ..layers.batch_norm import NORMS
from .registry import NETWORKS

#: the end of a network's name
Z_NORM = ",z-norm"
NETWORKS[f"NETWORK{Z_NORM}"] = "for latent features: batch norm of their mean and log variance"


def cut(module: nn.Sequential, event: torch.Size, spec: str) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder and the rest of a network; see :func:`hierfl.nn.networks.build.architecture`."""
    layers = list(module)
    if any(isinstance(layer, nn.Dropout) for layer in layers):
        raise UserError(f"a network with latent features has noise of its own, and no dropout; got {spec}")
    places = [k for k, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    places = places or [k for k, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
    if not places:
        raise UserError(f"network {spec} has no layer that could give latent features; as in mlp:100")
    k = places[-1]
    old, rest = layers[k], layers[k + 1 :]
    normed = bool(rest) and isinstance(rest[0], NORMS)
    rest = rest[1:] if normed else rest
    before: list[nn.Module] = layers[:k]
    last: list[nn.Module] = []
    if isinstance(old, nn.Conv2d):
        shape: tuple[Any, ...] = (old.kernel_size, old.stride, old.padding)
        twice: nn.Module = nn.Conv2d(old.in_channels, 2 * old.out_channels, *shape)
        last = [nn.BatchNorm2d(2 * old.out_channels)] if spec.endswith(Z_NORM) else []
        picture = nn.Sequential(*before, twice).eval()(torch.zeros(1, *event)).shape[1:]
        rest = [nn.Unflatten(1, (picture[0] // 2, *picture[1:])), *rest]
        last += [nn.Flatten()]
    else:
        assert isinstance(old, nn.Linear)
        twice = nn.Linear(old.in_features, 2 * old.out_features)
        last = [nn.BatchNorm1d(2 * old.out_features)] if spec.endswith(Z_NORM) else []
    return nn.Sequential(*before, twice, *last), nn.Sequential(*rest)
