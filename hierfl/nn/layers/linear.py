"""Linear layers whose weights are shared or belong to clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..precision import as_multiplied
from .registry import LAYERS, LayerKind


def client_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer whose weights are shared or belong to clients, or to particles and clients.

    Args:
        x: (S, n, in), or (K, S, n, in) where an earlier layer was drawn.
        weight: (out, in), (S, 1, out, in) or (K, S, 1, out, in).
        bias: the same without "in", or None.

    Returns:
        (S, n, out), or (K, S, n, out).
    """
    if weight.dim() == 2:
        return linear(x, weight, bias)
    weight = weight.squeeze(-3)
    if weight.dim() == 3 and x.dim() > 3:  # draws of what this layer is given
        y = x @ weight.mT
        return y if bias is None else y + bias
    if weight.dim() == 3:
        x = x.expand(weight.shape[0], *x.shape[1:])
        return product(x, weight, bias) if bias is None or bias.dim() == 3 else product(x, weight) + bias
    if x.dim() > 3 or weight.shape[1] != x.shape[0]:
        y = x @ weight.mT
        return y if bias is None else y + bias
    # one product per client for all particles, x is read once; examples last, as the likelihood wants them
    draws, rows, out, _ = weight.shape
    every = weight.transpose(0, 1).reshape(rows, draws * out, -1)
    own = None
    if bias is not None and bias.dim() == 4:
        own, bias = bias.transpose(0, 1).reshape(rows, draws * out, 1), None
    y = product(every, x, own).unflatten(1, (draws, out)).permute(1, 0, 3, 2)
    return y if bias is None else y + bias


class _Product(torch.autograd.Function):
    """x @ weight.mT + bias for each client, whose gradient has the weight's own layout.

    Torch's gradient of bmm(x, weight.mT) is the transpose of what is wanted, and is copied into place: for a batch of
    ten that copy is most of the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = as_multiplied(x, weight)
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else bias.shape
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias, x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        return (
            torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None,
            torch.bmm(gradient.mT, x) if ctx.needs_input_grad[1] else None,
            gradient.sum_to_size(ctx.bias) if ctx.needs_input_grad[2] else None,
        )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (S, n, in) times the transpose of weight (S, out, in) plus bias (S, 1, out) or (S, n, 1), client by client.

    Returns:
        (S, n, out).
    """
    return _Product.apply(x, weight, bias)


def _apply(layer: nn.Linear, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return client_linear(x, own["weight"], own.get("bias"))


LAYERS[nn.Linear] = LayerKind(_apply, flat=True)
