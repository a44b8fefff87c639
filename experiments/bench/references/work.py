"""What a round of a reference starts from."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from hierfl.data.federation import Federation
from hierfl.inference.method.base import Method
from hierfl.inference.state import State
from hierfl.nn.functional import Network

M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Work(Generic[M]):
    """What a round starts from.

    Attributes:
        method: network and settings.
        federation: the clients' data.
        shared: what the server has sent; of pFedVEM w (d,) and the base's weights.
        personal: the clients' rows; of pFedVEM mu, pi (J, d) and rho (J, 1).
        chunk: rows at a time, where rows are batched.
        x, y: each client's standardised training data.
    """

    method: M
    federation: Federation
    shared: State
    personal: State
    chunk: int
    x: list[Tensor]
    y: list[Tensor]

    @classmethod
    def for_method(cls, method: M, federation: Federation, shared: State, personal: State, chunk: int) -> Work[M]:
        """Standardises all data."""
        data = [federation.examples(index) for index in federation.train]
        return cls(method, federation, dict(shared), dict(personal), chunk, [x for x, _ in data], [y for _, y in data])

    @property
    def clients(self) -> int:
        """J."""
        return len(self.x)

    def module(self, network: Network) -> nn.Module:
        """A copy of a network as it is broadcast."""
        module = copy.deepcopy(network.module).to(self.federation.device, self.federation.dtype)
        module.load_state_dict(network.parameters_from(self.shared), strict=False)  # batch norm counts its batches
        return module.requires_grad_().train()

    def split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Weight (..., C, features) and bias (..., C) of a flat head."""
        head = self.method.network.head
        cut = head.outputs * head.features
        return w[..., :cut].unflatten(-1, (head.outputs, head.features)), w[..., cut:]

    def sgd(self, leaves: Any, lr: float, **how: bool) -> torch.optim.SGD:
        """The optimiser, forgotten each round."""
        return torch.optim.SGD(leaves, lr=lr, momentum=self.method.settings.momentum, **how)


def values_of(network: Network, module: nn.Module) -> State:
    """Weights and running statistics of a client's copy, by hierfl's names."""
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: values[name.removeprefix(f"{network.name}.")].detach() for name in network.names}


def stacked(results: list[State]) -> State:
    """{name: (J, *shape)}."""
    return {k: torch.stack([r[k] for r in results]) for k in results[0]}
