"""Batch norm under a client dimension: every client by its own batch, padding left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from .registry import LAYERS, LayerKind

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
Norm = nn.BatchNorm1d | nn.BatchNorm2d
#: what batch norm remembers of its batches; values like weights, but never trained
STATISTICS = ("running_mean", "running_var")


def is_statistic(name: str) -> bool:
    """Whether a value is a running statistic of batch norm, not a weight."""
    return name.rpartition(".")[2] in STATISTICS


LAYER_VALUES = ("weight", "bias", *STATISTICS)


@dataclass
class Norms:
    """How batch norm normalises while something is trained: by the batch, every client by its own.

    Networks of which nothing is trained go on by their running statistics, unless they say otherwise.

    Attributes:
        mask: (S, n), False for padding, which is on the right and never enters a statistic; None for none.
        moving: names of what is trained.
        running: new running statistics of what is trained, {name: (S, C)}; filled while networks run.
    """

    mask: Tensor | None
    moving: frozenset[str]
    running: dict[str, Tensor] = field(default_factory=dict)


class Moments(NamedTuple):
    """What batch norm saw of some clients' batches."""

    mean: Tensor  # (S, C)
    variance: Tensor  # (S, C), unbiased
    known: Tensor  # (S,), whether there were two numbers to have one


def layer_values(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A layer's own values out of a network's."""
    return {k: weights[f"{prefix}{k}"] for k in LAYER_VALUES if f"{prefix}{k}" in weights}


def standing_norm(x: Tensor, own: Mapping[str, Tensor], layer: Norm) -> Tensor:
    """Batch norm of one client's examples (n, C, ...) by its running statistics."""
    return batch_norm(x, own["running_mean"], own["running_var"], own.get("weight"), own.get("bias"), eps=layer.eps)


def client_norm(x: Tensor, own: Mapping[str, Tensor], eps: float, mask: Tensor | None) -> tuple[Tensor, Moments]:
    """Batch norm of every client's examples by its own batch, padding left out.

    A client with a single number per channel has no spread: it is normalised by its running statistics.

    Args:
        x: (S, n, C, ...).
        own: weight, bias and running statistics, (C,) or (S, 1, C).
        eps: that is added to variances.
        mask: (S, n), False for padding.

    Returns:
        (S, n, C, ...), and the batch's moments.
    """
    x = x.to(own["running_mean"].dtype)  # where networks multiply in less
    rows, n, channels = x.shape[:3]
    around = (*range(3, x.dim()),)
    area = x[0, 0, 0].numel()
    wide = {k: v.reshape(-1, channels).expand(rows, channels) for k, v in own.items()}
    counts = torch.full((rows,), n, device=x.device) if mask is None else mask.sum(1)
    several = counts * area > 1
    if mask is None and n * area > 1:
        mean, variance = x.new_zeros(rows * channels), x.new_ones(rows * channels)
        weight, bias = (wide[k].flatten() if k in wide else None for k in ("weight", "bias"))
        side_by_side = x.transpose(0, 1).flatten(1, 2)  # (n, S C, ...): the clients' channels beside each other
        if n == 1:  # torch's gradients are wrong for a single example whose channels come last
            side_by_side = side_by_side.contiguous()
        y = batch_norm(side_by_side, mean, variance, weight, bias, training=True, momentum=1.0, eps=eps)
        moments_seen = Moments(mean.view(rows, -1), variance.view(rows, -1), several)
        return y.unflatten(1, (rows, channels)).transpose(0, 1), moments_seen
    ones = torch.ones((rows, n), dtype=x.dtype, device=x.device) if mask is None else mask.to(x.dtype)
    ones = ones.view(rows, n, *[1] * (x.dim() - 2))
    total = (counts * area).clamp_min(1).to(x.dtype)[:, None]
    mean = (x * ones).sum((1, *around)) / total
    centred = (x - _beside(mean, x)) * ones
    spread = centred.square().sum((1, *around))
    # The substitute for the moments of a client without a variance has no gradient.
    used_mean = torch.where(several[:, None], mean, wide["running_mean"])
    used_variance = torch.where(several[:, None], spread / total, wide["running_var"])
    y = (x - _beside(used_mean, x)) * _beside((used_variance + eps).rsqrt(), x)
    if "weight" in wide:
        y = y * _beside(wide["weight"], x) + _beside(wide["bias"], x)
    unbiased = spread.detach() / (total - 1).clamp_min(1)
    return y, Moments(mean.detach(), unbiased, several)


def remember(
    layers: Mapping[str, nn.Module], name: str, weights: Mapping[str, Tensor],
    moments_seen: Mapping[str, list[Moments]], norms: Norms,
) -> None:  # fmt: skip
    """Moves running statistics towards the batch's, as torch does; those of a client with one number stay.

    Args:
        layers: batch norm by prefix.
        name: of the network, with which its values' names begin.
        weights: its values, with the statistics until now.
        moments_seen: what batch norm saw.
        norms: where the new statistics are left.
    """
    for prefix, layer in layers.items():
        if prefix not in moments_seen or not isinstance(layer, NORMS):
            continue
        mean, variance, finite = (torch.cat(parts) for parts in zip(*moments_seen[prefix], strict=True))
        for what, new in zip(STATISTICS, (mean, variance), strict=True):
            old = weights[f"{prefix}{what}"].detach()
            old = old.squeeze(1) if old.dim() > 1 else old.expand_as(new)
            moved = torch.lerp(old, new, layer.momentum or 0.0)
            norms.running[f"{name}.{prefix}{what}"] = torch.where(finite[:, None], moved, old)


def _beside(value: Tensor, x: Tensor) -> Tensor:
    """(S, C) beside (S, n, C, ...)."""
    return value.view(value.shape[0], 1, value.shape[1], *[1] * (x.dim() - 3))


def _per_channel(value: Tensor, x: Tensor) -> Tensor:
    """(C,) or (S, 1, C) beside (S, n, C, ...)."""
    return value.view(*value.shape, *[1] * (x.dim() - 3))


def running_norm(x: Tensor, own: Mapping[str, Tensor], eps: float) -> Tensor:
    """Batch norm by running statistics, everything (C,) or (S, 1, C); x (S, n, C, ...)."""
    mean, variance = (_per_channel(own[k], x) for k in STATISTICS)
    y = (x - mean) * (variance + eps).rsqrt()
    return y if "weight" not in own else y * _per_channel(own["weight"], x) + _per_channel(own["bias"], x)


def _apply(layer: Norm, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return running_norm(x, own, layer.eps)


def _alone(layer: Norm, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return standing_norm(x, own, layer)


def _known(layer: Norm) -> bool:
    return bool(layer.track_running_stats) and layer.momentum is not None


LAYERS[nn.BatchNorm1d] = LayerKind(_apply, _alone, _known)
LAYERS[nn.BatchNorm2d] = LayerKind(_apply, _alone, _known, sees_pictures=True)
