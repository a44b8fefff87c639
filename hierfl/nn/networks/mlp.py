"""Networks without convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ...errors import UserError
from .registry import network


def with_hidden_layers(
    layers: Sequence[nn.Module], event: torch.Size, widths: Sequence[int], relu: Callable[[], nn.Module],
    drop: float = 0.0, norm: bool = False,
) -> nn.Sequential:  # fmt: skip
    """These layers, flattened, and hidden ones of these widths behind them, by choice with batch norm and dropout."""
    stack = [*layers, nn.Flatten()]
    features = nn.Sequential(*stack).eval()(torch.zeros(1, *event)).shape[-1]
    for below, above in itertools.pairwise([features, *widths]):
        normed = [nn.BatchNorm1d(above)] if norm else []
        stack += [nn.Linear(below, above), *normed, relu(), *([nn.Dropout(drop)] if drop else [])]
    return nn.Sequential(*stack)


@network("linear", "no base network: the inputs are the features")
def linear(event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float) -> nn.Sequential:
    """The inputs, flat."""
    return with_hidden_layers((), event, (), relu)


@network("mlp:H,H,...", "hidden layers of these widths, ReLU", options=("dropout", "leaky"))
def mlp(event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float) -> nn.Sequential:
    """A multilayer perceptron."""
    return with_hidden_layers((), event, widths[0], relu, drop)


@network(
    "projection:D",
    "a matrix to D numbers, and a head without bias: y = z^T phi^T x (FedPop's synthetic data)",
    head_bias=False,
)
def projection(
    event: torch.Size, widths: Sequence[list[int]], relu: Callable[[], nn.Module], drop: float
) -> nn.Sequential:
    """A matrix."""
    if len(widths[0]) != 1:
        widths_given = ",".join(map(str, widths[0]))
        raise UserError(f"network projection takes one width, as in projection:2; got projection:{widths_given}")
    return nn.Sequential(nn.Flatten(), nn.Linear(event.numel(), widths[0][0], bias=False))
