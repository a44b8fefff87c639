"""One number from the clients': averages over clients are unweighted, those called pooled weight by test size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from .classification import calibration_error
from .registry import Pooling, metrics_of


def over_clients(rows: Mapping[str, np.ndarray], task: str) -> dict[str, float]:
    """One number per metric from the clients': unweighted means over those that have test data, tails, pooled values.

    Args:
        rows: per client, n and each metric (J,), and bins (J, 15, 3) for classification.
        task: "classification" or "regression".

    Returns:
        For classification accuracy, nll, brier, ece, worst10_accuracy (mean of the worst tenth of the clients, at
        least one), accuracy_cv (standard deviation over mean), accuracy_pooled, ece_pooled; for regression rmse,
        nll, crps, coverage90, rmse_pooled.
    """
    n = np.asarray(rows["n"], dtype=float)
    has = n > 0
    if not has.any():
        return {}
    weight = n[has] / n[has].sum()
    return {
        metric.name: _POOLED[metric.pooled](np.asarray(rows[metric.of or metric.name])[has], weight)
        for metric in metrics_of(task)
    }


def _mean(values: np.ndarray, weight: np.ndarray) -> float:
    return float(np.mean(values))


def _worst_tenth(values: np.ndarray, weight: np.ndarray) -> float:
    return float(np.sort(values)[: max(1, math.ceil(0.1 * len(values)))].mean())


def _variation(values: np.ndarray, weight: np.ndarray) -> float:
    values = np.sort(values)
    return float(values.std() / values.mean()) if values.mean() > 0 else float("nan")


def _by_size(values: np.ndarray, weight: np.ndarray) -> float:
    return float(weight @ values)


def _root_mean_square(values: np.ndarray, weight: np.ndarray) -> float:
    return float(np.sqrt(weight @ np.square(values)))


def _of_all_bins(bins: np.ndarray, weight: np.ndarray) -> float:
    return float(calibration_error(torch.as_tensor(bins.sum(0))))


_POOLED: dict[Pooling, Callable[[np.ndarray, np.ndarray], float]] = {
    "mean": _mean, "worst tenth": _worst_tenth, "variation": _variation, "by size": _by_size,
    "root mean square by size": _root_mean_square, "of all bins": _of_all_bins,
}  # fmt: skip
