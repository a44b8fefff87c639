"""Every client's metrics on its own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.ppl.frozen_features import FrozenFeatures

from .fitted import Fitted
from .response import predictive_terms, response, site_rows

#: numbers (draws x examples x classes) that a prediction holds at a time
BUDGET = 20_000_000
#: how many numbers one in double precision represents
DOUBLE = 4
#: from what was said of the pieces of a batch (:func:`.response.predictive_terms`) to each row's numbers, n among them
Measure = Callable[[Sequence[Sequence[Tensor]], Batch], dict[str, Tensor]]


def pieces(sizes: Sequence[int], chunk: int, cost: int) -> list[list[int]]:
    """Clients with data, largest first, in groups whose padded size times ``cost`` stays within the budget."""
    order = sorted((j for j, n in enumerate(sizes) if n), key=lambda j: -sizes[j])
    groups: list[list[int]] = []
    for j in order:
        if groups and len(groups[-1]) < chunk and sizes[groups[-1][0]] * cost * (len(groups[-1]) + 1) <= BUDGET:
            groups[-1].append(j)
        else:
            groups.append([j])
    return groups


def evaluate_personal(
    fitted: Fitted, split: str, chunk: int, draws: Sequence[int] = (0,), measures: Sequence[Measure] | None = None
) -> list[dict[str, np.ndarray]]:
    """Every client's metrics on its own data of ``split``, {metric: (J, ...)}, NaN where it has none.

    Where none of them has any there is n alone.

    Args:
        fitted: the state.
        split: "train", "validation" or "test".
        chunk: clients at a time.
        draws: for each of the results wanted: 0 predicts at the posterior mean, else averaged over so many draws.
        measures: of each of the results; None for the metrics of the task.
    """
    federation = fitted.federation
    measures = measures or [partial(site_rows, task=federation.task, units=federation.units)] * len(draws)
    cost = max(1, *draws) * max(1, federation.classes) + federation.event_shape.numel()
    # Numbers of tables are twice as wide, and scores of draws hold each several times.
    cost *= DOUBLE if federation.dtype == torch.float64 else 1
    sizes = torch.zeros(federation.clients, dtype=federation.dtype, device=federation.device)
    results: list[dict[str, Tensor]] = [{"n": sizes.clone()} for _ in draws]
    for rows in pieces(federation.sizes(split), chunk, cost):
        batch, values = federation.batch(rows, split), fitted.values(rows)
        index = torch.tensor(rows, device=federation.device)
        noises = [fitted.noise(rows, k, "predict") if k else None for k in draws]
        parts: list[list[list[Tensor]]] = [[] for _ in draws]
        for piece in fitted.pieces(batch, max(draws)):
            features = FrozenFeatures.from_inputs(piece.x, frozenset(), values)
            for k, noise, terms in zip(draws, noises, parts, strict=True):
                _, sites = fitted.personal_sites(rows, piece, k, features=features, noise=noise)
                terms.append(predictive_terms(response(sites), piece.y, federation.task, federation.units))
        for result, terms, measure in zip(results, parts, measures, strict=True):
            for name, value in measure(terms, batch).items():
                if name not in result:
                    empty = 0.0 if name == "bins" else float("nan")
                    result[name] = value.new_full((federation.clients, *value.shape[1:]), empty)
                result[name][index] = value
    return [{name: value.cpu().double().numpy() for name, value in result.items()} for result in results]
