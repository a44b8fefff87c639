"""Layers whose weights are shared or belong to clients: linear ones and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear


def by_example(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Applies to (S, n, *event) what takes (S n, *event)."""
    return function(x.flatten(0, 1)).unflatten(0, x.shape[:2])


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
