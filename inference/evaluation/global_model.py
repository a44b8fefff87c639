"""Metrics of the global model."""

from __future__ import annotations

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.metrics.pooling import MetricSums, example_sums

from ..method.capabilities import has_global_moments
from .fitted import Fitted
from .personal import BUDGET
from .response import predictive_terms, response, site_rows

#: of many examples the mixture has fewer draws, but no fewer than this
EXAMPLES_TIMES_DRAWS, LEAST_DRAWS = 20_000_000, 20


def evaluate_global(fitted: Fitted, index: Tensor) -> MetricSums:
    """Sums over the pool's examples ``index``, from which the global model's metrics are; see
    :func:`~hierfl.metrics.pooling.from_example_sums`.
    """
    federation = fitted.federation
    moments = has_global_moments(fitted.method)
    draws = 0 if moments else fitted.method.global_draws
    draws = min(draws, max(LEAST_DRAWS, EXAMPLES_TIMES_DRAWS // max(1, len(index))))
    # A score of draws passes over them again and again: pieces stay in a cache.
    size = max(1, BUDGET // max(1, federation.classes) // max(10, 100 * draws))
    parts, noise = [], fitted.population_noise(1, draws)
    for piece in index.split(size) if len(index) else ():
        x, y = federation.examples(piece[None])
        batch = Batch(x, y, None, torch.ones(1, dtype=federation.dtype, device=federation.device))
        sites = [
            predictive_terms(
                fitted.global_moments(p) if moments else response(fitted.global_sites(p, draws, noise)),
                p.y,
                federation.task,
                federation.units,
            )
            for p in fitted.pieces(batch, draws)
        ]
        parts.append(site_rows(sites, batch, federation.task, federation.units))
    return example_sums([{k: v.cpu().double().numpy() for k, v in part.items()} for part in parts], federation.task)
