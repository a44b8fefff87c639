"""Each client's regression metrics: RMSE, NLL, CRPS, coverage of the central 90 % interval."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .normal_mixture import absolute_moment, mean_difference


def regression_rows(
    mean: Tensor, std: Tensor | None, log_density: Tensor, y: Tensor, mask: Tensor | None
) -> dict[str, Tensor]:
    """Each row's metrics under an equal mixture of K predictive distributions.

    Args:
        mean: of each, (K, S, n).
        std: of each, if they are normal; None for another family, for which CRPS and coverage are not given (NaN).
        log_density: of the response under each, (K, S, n).
        y: responses, (S, n).
        mask: as above.

    Returns:
        n, rmse, nll, crps, coverage90: (S,), NaN for rows without examples.
    """
    weight = torch.ones_like(y) if mask is None else mask.to(y.dtype)
    n, draws = weight.sum(1), len(mean)
    crps = inside = torch.full_like(y, float("nan"))
    if std is not None:
        distance, probabilities_below = absolute_moment(y - mean, std)
        crps, below = distance.mean(0) - 0.5 * mean_difference(mean, std), probabilities_below.mean(0)
        inside = ((below >= 0.05) & (below <= 0.95)).to(y.dtype)
    squares = (y - mean.mean(0)).square()
    rows = {
        "nll": math.log(draws) - log_density.logsumexp(0),
        "crps": crps,
        "coverage90": inside,
        "rmse": squares,
    }
    result = {name: (value * weight).sum(1) / n for name, value in rows.items()}
    return {"n": n, **result, "rmse": result["rmse"].sqrt()}
