"""What every client's base network makes of its data."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.nn.functional import Network

from .fitted import Fitted


class LastSeen(Messenger):
    """Keeps what a network has made of its inputs, whatever its weights come from: the last time it is asked.

    A method with one model for all and a personal one beside it asks for the personal one's last.

    Args:
        network: which.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.value: Tensor = torch.empty(0)

    def _pyro_post_network(self, msg: dict[str, Any]) -> None:
        if msg["args"][0] is self.network:
            self.value = msg["value"]


def features(fitted: Fitted, most: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What every client's base network makes of its own test data, under its personal model: the last layer's inputs.

    Latent features are at their mean.

    Args:
        fitted: the state.
        most: examples of all clients together; of more, some are taken at random, the same each time.

    Returns:
        Features (N, D), targets (N,) and the clients' names (N,).
    """
    federation, network = fitted.federation, fitted.method.network
    owner = np.repeat(np.arange(federation.clients), federation.sizes("test"))
    position = np.concatenate([np.arange(n) for n in federation.sizes("test")])
    taken = np.sort(np.random.default_rng(0).permutation(len(owner))[:most])
    outputs, targets = [np.empty((0, network.head.features))], [np.empty(0, dtype=federation.y[:0].cpu().numpy().dtype)]
    for j in np.unique(owner[taken]).tolist():
        index = federation.test[j][torch.as_tensor(position[taken[owner[taken] == j]], device=federation.device)]
        x, y = federation.examples(index[None])
        batch = Batch(x, y, None, torch.ones(1, dtype=federation.dtype, device=federation.device))
        with LastSeen(network.last_network) as last_seen:
            fitted.personal_sites([j], batch, 0)
        outputs.append(last_seen.value.reshape(-1, network.head.features).cpu().double().numpy())
        targets.append(y[0].cpu().numpy())
    names = np.array(federation.ids)[owner[taken]]
    return np.concatenate(outputs), np.concatenate(targets), names
