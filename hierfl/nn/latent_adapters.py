"""Latent features in the middle of a network that does not move: what pFedV draws, and what a client adapts.

The layers before the first adapted one are m(x), constant. Latent features are z ~ N(E m(x) + e, diag exp(F m(x) + f))
with a linear layer (of a picture one for all pixels) that begins at E = I, e = F = 0 and f = LOG_VARIANCE. So the start
is the network as it was given, but for little noise. The layers after z are adapted, see :mod:`.adapters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from .adapters import LowRankHead, adaptable, low_rank, split
from .functional import Network

#: of latent features, to begin with
LOG_VARIANCE = -4.0


class Moments(nn.Module):
    """Mean and log variance of latent features, (n, 2 M), from what some layers give.

    Args:
        event: shape of that: (features,) or (channels, height, width).
    """

    def __init__(self, event: Sequence[int]) -> None:
        super().__init__()
        width = event[0]
        self.layer = nn.Linear(width, 2 * width) if len(event) == 1 else nn.Conv2d(width, 2 * width, 1)
        with torch.no_grad():
            self.layer.weight.zero_()
            self.layer.weight[:width].flatten(1).copy_(torch.eye(width))
            bias = cast("Tensor", self.layer.bias)
            bias[:width].zero_()
            bias[width:].fill_(LOG_VARIANCE)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the output for x (n, *event)."""
        return self.layer(x).flatten(1)


def latent_low_rank(
    module: nn.Module, example: Tensor, outputs: int, rank: int, layers: Sequence[str] = (), trained: bool = True
) -> tuple[Network, Network, LowRankHead, int]:
    """Encoder, base network, head, and how many latent features there are.

    Args:
        module, example, outputs, rank, layers, trained: see :func:`.adapters.low_rank`.

    Raises:
        UserError: where no layer comes before the first adapted one, or what it gives is neither flat nor a picture.
    """
    first, later = split(module, adaptable(module, layers))
    before = [layer.requires_grad_(False) for layer in list(module.children())[:first]]
    if not any(True for layer in before for _ in layer.parameters()):
        raise UserError(
            "latent features come before the first adapted layer, which is the network's first: name later ones, as in "
            "lora:8:layer4"
        )
    with torch.no_grad():
        inner = nn.Sequential(*before)(example)
    event = tuple(inner.shape[1:])
    if len(event) not in (1, 3):
        raise UserError(f"latent features are flat or pictures, and the layers before the adapted ones give {event}")
    with torch.random.fork_rng(devices=[]):  # what is drawn is overwritten
        encoder = Network(nn.Sequential(*before, Moments(event)), "encoder")
    base, head = low_rank(later, inner, outputs, rank, layers, trained, draws=True)
    return encoder, base, head, inner[0].numel()
