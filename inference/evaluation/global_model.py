"""Metrics of the global model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.metrics.classification import calibration_error
from hierfl.metrics.pooling import over_clients

from .fitted import Fitted
from .personal import BUDGET
from .response import predictive_terms, response, site_rows


def evaluate_global(fitted: Fitted, index: Tensor) -> dict[str, float]:
    """Metrics of the global model on the pool's examples ``index``, all as one client."""
    federation = fitted.federation
    moments = fitted.method.global_moments
    draws = 0 if moments else fitted.method.global_draws
    # (a score of draws passes over them again and again: pieces stay in a cache)
    size = max(1, BUDGET // max(1, federation.classes) // max(10, 100 * draws))
    parts, noise = [], fitted.population_noise(1, draws)
    for piece in index.split(size):
        x, y = federation.examples(piece[None])
        batch = Batch(x, y, None, torch.ones(1, dtype=federation.dtype, device=federation.device))
        found = [
            predictive_terms(
                fitted.global_moments(p) if moments else response(fitted.global_sites(p, draws, noise)),
                p.y,
                federation.task,
            )
            for p in fitted.pieces(batch, draws)
        ]
        parts.append(site_rows(found, batch, federation.task))
    rows = {k: np.stack([p[k].cpu().double().numpy() for p in parts]) for k in parts[0]}
    n = rows["n"][:, 0]
    one = {k: (n @ v[:, 0] / n.sum())[None] for k, v in rows.items() if k not in ("n", "bins", "rmse")}
    if "rmse" in rows:
        one["rmse"] = np.sqrt(n @ rows["rmse"][:, 0] ** 2 / n.sum())[None]
    if "bins" in rows:
        one["bins"] = rows["bins"].sum(0)
        one["ece"] = calibration_error(torch.as_tensor(one["bins"])).numpy()
    return over_clients({**one, "n": np.array([n.sum()])}, federation.task)
