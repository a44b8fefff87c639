"""A module as a chain of known layers, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .layers.batch_norm import NORMS, Moments, client_norm, layer_values
from .layers.registry import LAYERS, kind_of

#: pictures that go through a chain's convolutions together on a CPU
PICTURES_AT_A_TIME = 128


@dataclass(frozen=True)
class Chain:
    """Known layers.

    Attributes:
        layers: (prefix of its parameters, layer).
    """

    layers: tuple[tuple[str, nn.Module], ...]

    @classmethod
    def from_module(cls, module: nn.Module) -> Chain | None:
        """The layers of a module, or of a Sequential; None where they are not all known."""
        parts = [(f"{key}.", layer) for key, layer in module._modules.items() if layer is not None]
        layers = parts if type(module) is nn.Sequential else [("", module)]
        with_weights = [layer for _, layer in layers if any(True for _ in layer.parameters())]
        used_twice = len(set(map(id, with_weights))) < len(with_weights)
        kinds = [kind for _, layer in layers if (kind := kind_of(layer)) is not None]
        if used_twice or len(kinds) < len(layers):
            return None
        if any(kind.flat and any(after.sees_pictures for after in kinds[k:]) for k, kind in enumerate(kinds)):
            return None  # a picture again after it was flat
        # the maximum of ReLUs is the ReLU of the maximum, and that is four times fewer of them
        for k in range(len(layers) - 1):
            if LAYERS[type(layers[k][1])].rises(layers[k][1]) and type(layers[k + 1][1]) is nn.MaxPool2d:
                layers[k], layers[k + 1] = layers[k + 1], layers[k]
        return cls(tuple(layers))

    @property
    def looped(self) -> int:
        """How many of the layers a CPU runs client by client: up to the last one that is to be run so."""
        return max((k for k, (_, layer) in enumerate(self.layers, 1) if LAYERS[type(layer)].by_client), default=0)

    def norms(self) -> Iterator[tuple[str, nn.Module]]:
        """Its batch norm."""
        return ((prefix, layer) for prefix, layer in self.layers if isinstance(layer, NORMS))

    def alone(
        self,
        weights: Mapping[str, Tensor],
        x: Tensor,
        layers: int,
        present: int | None = None,
        moments_seen: dict[str, list[Moments]] | None = None,
    ) -> Tensor:
        """The first layers on a CPU, with one set of weights, (n, *event).

        Measured: all convolutions of one client before those of the next (they stay in cache), with channels last,
        take half as long as one grouped convolution after the other.

        Args:
            weights: of one client.
            x: its examples.
            layers: how many of the chain.
            present, seen: batch norm goes by the batch, of which so many are no padding, and tells its moments; None
                for by its running statistics.
        """
        done, n = [], len(x)
        for out in [x[:present]] if present is not None else x.split(PICTURES_AT_A_TIME):
            if out.dim() == 4:
                out = out.contiguous(memory_format=torch.channels_last)
            for prefix, layer in self.layers[:layers]:
                own = layer_values(prefix, weights)
                if isinstance(layer, NORMS) and moments_seen is not None:
                    y, moments = client_norm(out[None], own, layer.eps, None)
                    out = y[0]
                    moments_seen.setdefault(prefix, []).append(moments)
                else:
                    out = LAYERS[type(layer)].alone(layer, own, out)
            done.append(out)
        if present is not None and present < n:  # what comes of padding is masked further on
            return pad(done[0], (0, 0) * (done[0].dim() - 1) + (0, n - present))
        return done[0] if len(done) == 1 else torch.cat(done)
