"""What every client's base network makes of its data."""

from __future__ import annotations

import numpy as np
import torch

from .fitted import Fitted


def features(fitted: Fitted, most: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What every client's base network makes of its own test data: the last layer's inputs.

    Latent features are at their mean.

    Args:
        fitted: the state.
        most: examples of all clients together; of more, some are taken at random, the same each time.

    Returns:
        Features (N, D), targets (N,) and the clients' names (N,).
    """
    federation, network = fitted.federation, fitted.method.network
    owner = np.repeat(np.arange(federation.clients), federation.sizes("test"))
    place = np.concatenate([np.arange(n) for n in federation.sizes("test")])
    taken = np.sort(np.random.default_rng(0).permutation(len(owner))[:most])
    found, targets = [np.empty((0, network.head.features))], [np.empty(0, dtype=federation.y[:0].cpu().numpy().dtype)]
    for j in np.unique(owner[taken]).tolist():
        index = federation.test[j][torch.as_tensor(place[taken[owner[taken] == j]], device=federation.device)]
        x, y = federation.examples(index[None])
        values = fitted.values([j])
        with torch.no_grad():
            for net in network.networks:
                x = net.apply(net.parameters_from(values), x)
                if net is network.encoder:
                    x = x[..., : network.latents]  # (the means)
        found.append(x[0].cpu().double().numpy())
        targets.append(y[0].cpu().numpy())
    names = np.array(federation.ids)[owner[taken]]
    return np.concatenate(found), np.concatenate(targets), names
