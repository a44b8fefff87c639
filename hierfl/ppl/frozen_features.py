"""Outputs of networks that do not move, computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..nn.functional import Network


class FrozenFeatures:
    """Outputs of networks while none of their parameters moves: exact, since inputs and weights are the same.

    Args:
        moving: names of the parameters that do move.
        compute: a network's output on all inputs, asked once and only if some network is fixed: (S, n, features)
            for what is shown whole, or (N, features), of which places are shown.
    """

    def __init__(self, moving: frozenset[str], compute: Callable[[Network], Tensor]) -> None:
        self.moving, self.compute = moving, compute
        self._shown: Tensor | None = None
        self._places: Tensor | None = None
        self._kept: dict[int, Tensor] = {}

    @classmethod
    def from_inputs(cls, x: Tensor, moving: frozenset[str], values: Mapping[str, Tensor]) -> FrozenFeatures:
        """Returns the features of inputs that are shown whole, (S, n, *event), under these values."""
        frozen = cls(moving, lambda network: network.apply(network.parameters_from(values), x))
        frozen.show(x)
        return frozen

    def show(self, x: Tensor, places: Tensor | None = None) -> None:
        """Says that the model will be handed ``x``: all of the inputs, or those at these places (S, n)."""
        self._shown, self._places = x, places

    def serves(self, network: Network, x: Tensor) -> bool:
        """Whether the network's output on ``x`` is one that can be kept."""
        return x is self._shown and network.norm == "trained" and self.moving.isdisjoint(network.output_names)

    def features(self, network: Network) -> Tensor:
        """The network's output on what was shown."""
        if id(network) not in self._kept:
            with torch.no_grad():
                self._kept[id(network)] = self.compute(network)
        kept, places = self._kept[id(network)], self._places
        return kept if places is None else kept.index_select(0, places.flatten()).unflatten(0, places.shape)
