"""Every client's predictive entropy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.metrics.ood import predictive_entropy

from .fitted import Fitted
from .response import log_probs, response


def entropies(fitted: Fitted, x: Tensor | None = None, draws: int = 0, size: int = 500) -> list[np.ndarray]:
    """Every client's predictive entropy in nats, (n,) each: of its own model on its own test data, or on other inputs.

    Args:
        fitted: the state.
        x: raw inputs (n, *event), the same for everyone; None for everyone's own test data.
        draws: 0 predicts at the posterior mean, else averaged over so many draws.
        size: examples at a time.
    """
    federation, by_client = fitted.federation, []
    for j in range(federation.clients):
        own = x is None
        pieces = federation.test[j].split(size) if own else x.split(size)  # type: ignore[union-attr]
        parts = [np.empty(0)]
        for piece in pieces:
            if not len(piece):
                continue
            inputs = (
                federation.examples(piece[None])[0] if own else federation.inputs(piece.to(federation.device))[None]
            )
            y = federation.targets(torch.zeros(inputs.shape[:2], dtype=federation.y.dtype, device=federation.device))
            batch = Batch(inputs, y, None, torch.ones(1, dtype=federation.dtype, device=federation.device))
            _, sites = fitted.personal_sites([j], batch, draws, "entropy")
            parts.append(predictive_entropy(log_probs(response(sites).fn))[0].cpu().double().numpy())
        by_client.append(np.concatenate(parts))
    return by_client
