"""Sums over examples of squared gradients in all weights of a network, without the gradients of single examples.

Of a linear layer an example's gradient is g z^T, with z what the layer is given and g the gradient of what it gives, so
that the squares' sum is (g^2)^T z^2: it costs no more than a backward pass (Goodfellow, 2015, arXiv:1510.01799). Of a
convolution the gradient is a sum of such products over places, which is made for some examples at a time. Batch norm by
its running statistics is a scale and a shift of each channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from .architecture import Architecture
from .head import orthonormal_contrasts
from .layers.batch_norm import NORMS, STATISTICS, layer_values, standing_norm
from .layers.linear import client_linear
from .layers.registry import LAYERS

#: numbers of single examples' gradients of a convolution that are held at a time
MAX_NUMBERS_AT_ONCE = 4_000_000


def is_layered(network: Architecture) -> bool:
    """Whether all layers with weights are linear ones, batch norm, and convolutions without groups."""
    chain = network.base.chain
    with_weights = [layer for _, layer in chain.layers if any(True for _ in layer.parameters())] if chain else [None]
    return all(isinstance(m, (nn.Linear, *NORMS)) or (isinstance(m, nn.Conv2d) and m.groups == 1) for m in with_weights)


def squared_gradients(
    network: Architecture,
    w: Tensor,
    x: Tensor,
    roots: Callable[[Tensor], Sequence[Tensor]],
    statistics: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """sum_i sum_k (d r_ik^T output_i / d w)^2 of one client's examples i, (d,).

    Networks are as they predict: nothing is dropped, and batch norm goes by its running statistics.

    Args:
        network: for which :func:`is_layered`.
        w: all weights, (d,).
        x: its inputs, (n, *event).
        roots: from outputs (n, outputs) to directions r_k (n, outputs).
        statistics: those of batch norm, {name: (C,)}.
    """
    chain = network.base.chain
    assert chain is not None
    weights, head = network.parts(w.detach())
    weights |= {k.removeprefix(f"{network.base.name}."): v for k, v in (statistics or {}).items()}
    given, gave, formulas, names = (
        [],
        [],
        [],
        [],
    )  # by layer with weights: its input, output, formula, names of its values
    z = x.detach().requires_grad_()  # so that what each layer gives has a gradient
    for prefix, layer in chain.layers:
        own, before = layer_values(prefix, weights), z.detach()
        if isinstance(layer, nn.Linear):
            z = _flat(z, own["weight"], own.get("bias"))
        elif not isinstance(layer, nn.Dropout):
            z = LAYERS[type(layer)].alone(layer, own, z)
        called = {k: f"{prefix}{k}" for k in own if k not in STATISTICS}
        if called:
            given.append(before)
            gave.append(z)
            formulas.append(_formula(layer, own))
            names.append(called)
    cut = network.head.rows * network.head.features
    own = {"weight": head[:cut].view(network.head.rows, -1), **({"bias": head[cut:]} if network.head.bias else {})}
    last = _flat(z, own["weight"], own.get("bias"))
    output = last @ orthonormal_contrasts(network.head.outputs).to(last) if network.head.contrasts else last
    given, gave = [*given, z.detach()], [*gave, last]
    formulas, names = [*formulas, _of_linear], [*names, {k: f"head.{k}" for k in own}]
    directions, squares_of = roots(output.detach()), dict[str, Tensor]()
    for number, direction in enumerate(directions):
        slopes = torch.autograd.grad((output * direction).sum(), gave, retain_graph=number + 1 < len(directions))
        for formula, called, layer_input, slope in zip(formulas, names, given, slopes, strict=True):
            squares = formula(layer_input, slope)
            for key, name in called.items():
                squares_of[name] = squares_of[name] + squares[key] if name in squares_of else squares[key]
    return torch.cat([squares_of[k].flatten() for k in (*network.base.shapes, *names[-1].values())])


def _formula(layer: nn.Module, own: Mapping[str, Tensor]) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """The function of a layer's input and its output's gradient that gives sums of squares by name."""
    if isinstance(layer, nn.Linear):
        return _of_linear
    return _of_norm(layer, own) if isinstance(layer, NORMS) else _of_convolution(layer)


def _flat(z: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return client_linear(z[None], weight, bias)[0]


def _of_linear(z: Tensor, slope: Tensor) -> dict[str, Tensor]:
    square = slope.square()
    return {"weight": square.mT @ z.square(), "bias": square.sum(0)}


def _of_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, own: Mapping[str, Tensor]) -> Callable[..., dict[str, Tensor]]:
    def squares(z: Tensor, slope: Tensor) -> dict[str, Tensor]:
        normed = standing_norm(z, {k: own[k] for k in STATISTICS}, layer)
        places = (*z.shape[:2], -1)
        return {
            "weight": (normed * slope).reshape(places).sum(-1).square().sum(0),
            "bias": slope.reshape(places).sum(-1).square().sum(0),
        }

    return squares


def _of_convolution(layer: nn.Module) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    assert isinstance(layer, nn.Conv2d)
    padding = layer.padding if not isinstance(layer.padding, str) else 0

    def squares(z: Tensor, slope: Tensor) -> dict[str, Tensor]:
        total, examples_at_once = (
            torch.zeros_like(layer.weight, dtype=z.dtype, device=z.device),
            max(1, MAX_NUMBERS_AT_ONCE // layer.weight.numel()),
        )
        for some, back in zip(z.split(examples_at_once), slope.split(examples_at_once), strict=True):
            columns = unfold(some, layer.kernel_size, layer.dilation, padding, layer.stride)  # (n, in h w, places)
            total += (back.flatten(2) @ columns.mT).square().sum(0).view_as(total)
        return {"weight": total, "bias": slope.flatten(2).sum(-1).square().sum(0)}

    return squares
