"""One number from the clients': averages over clients are unweighted, those called pooled weight by test size.

Every such number is made from sums over clients, which add up wherever the clients are. Two are more exact where all of
them are here: the worst tenth of the clients, else read from a histogram, and how much they vary, else from squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .classification import BINS, calibration_error
from .registry import METRICS, Pooling, client_metrics, metrics_of

#: bins of the histogram from 0 to 1 that the worst tenth is read from: it is right to half a bin
HISTOGRAM = 1000
#: sums over clients, or examples; each {name: array}, of the same shapes whichever clients they are from
MetricSums = dict[str, np.ndarray]


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
    metrics = from_client_sums(client_sums(rows, task), task)
    has = np.asarray(rows["n"]) > 0
    for metric in metrics_of(task) if metrics else ():
        if metric.pooled in _EXACT:
            metrics[metric.name] = _EXACT[metric.pooled](np.sort(np.asarray(rows[metric.of], dtype=float)[has]))
    return metrics


def client_sums(rows: Mapping[str, np.ndarray], task: str) -> MetricSums:
    """What :func:`from_client_sums` needs of some clients.

    Args:
        rows: as for :func:`over_clients`; n alone where none of them has data.
        task: "classification" or "regression".

    Returns:
        clients, examples: (), how many there are; and for each metric an array of sums.
    """
    n = np.asarray(rows["n"], dtype=float)
    has = n > 0
    sums = {"clients": np.asarray(float(has.sum())), "examples": np.asarray(n.sum())}
    for metric in metrics_of(task):
        name = metric.of or metric.name
        nothing = np.zeros((0, BINS, 3) if name == "bins" else 0)
        values = np.asarray(rows[name], dtype=float)[has] if has.any() else nothing
        sums[metric.name] = np.asarray(_POOLED[metric.pooled].terms(values, n[has]))
    return sums


def from_client_sums(sums: Mapping[str, np.ndarray], task: str) -> dict[str, float]:
    """One number per metric from sums over clients; empty where none of them has data."""
    clients, examples = float(sums["clients"]), float(sums["examples"])
    if not clients:
        return {}
    return {m.name: _POOLED[m.pooled].value(sums[m.name], clients, examples) for m in metrics_of(task)}


def example_sums(rows: Sequence[Mapping[str, np.ndarray]], task: str) -> MetricSums:
    """What :func:`from_example_sums` needs of some examples.

    Args:
        rows: metrics of parts of them, each as those of one client: n and each metric (1,), bins (1, 15, 3).
        task: "classification" or "regression".

    Returns:
        examples, (), and for each metric that examples have a sum over them, for classification bins (15, 3).
    """
    n = np.array([part["n"][0] for part in rows], dtype=float)
    sums = {"examples": np.asarray(n.sum())}
    for name in client_metrics(task):
        values = np.array([part[name][0] for part in rows], dtype=float)
        if name != "ece":
            sums[name] = np.asarray(n @ (np.square(values) if name == "rmse" else values))
    if task == "classification":
        sums["bins"] = np.sum([part["bins"][0] for part in rows], 0) if rows else np.zeros((BINS, 3))
    return sums


def from_example_sums(sums: Mapping[str, np.ndarray], task: str) -> dict[str, float]:
    """Metrics of all examples as one client's; empty where there are none."""
    n = float(sums["examples"])
    if not n:
        return {}
    metrics = {}
    for name in client_metrics(task):
        if name == "ece":
            metrics[name] = float(calibration_error(torch.as_tensor(sums["bins"])))
        else:
            value = float(sums[name]) / n
            metrics[name] = math.sqrt(value) if name == "rmse" else value
    return {name: value for name, value in metrics.items() if METRICS[name].of_global}


def _least_tenth(values: np.ndarray) -> float:
    return float(values[: max(1, math.ceil(0.1 * len(values)))].mean())


def _relative_deviation(values: np.ndarray) -> float:
    return float(values.std() / values.mean()) if values.mean() > 0 else math.nan


#: of sorted values of all clients
_EXACT: dict[Pooling, Callable[[np.ndarray], float]] = {"worst tenth": _least_tenth, "variation": _relative_deviation}


@dataclass(frozen=True)
class _Pooled:
    """How clients' numbers become one.

    Attributes:
        terms: from values (J, ...) and sizes (J,) to sums over clients.
        value: from those, how many clients and how many examples there are, to the number.
    """

    terms: Callable[[np.ndarray, np.ndarray], np.ndarray]
    value: Callable[[np.ndarray, float, float], float]


def histogram(values: np.ndarray) -> np.ndarray:
    """How many of some numbers from 0 to 1 are in each of :data:`HISTOGRAM` bins."""
    return np.histogram(values, HISTOGRAM, (0.0, 1.0))[0].astype(float)


def worst_tenth(counts: np.ndarray, clients: float) -> float:
    """The mean of the least tenth of the numbers in a histogram, each at the middle of its bin."""
    left = np.clip(max(1, math.ceil(0.1 * clients)) - (np.cumsum(counts) - counts), 0, counts)
    return float(left @ (np.arange(HISTOGRAM) + 0.5) / HISTOGRAM / left.sum()) if left.sum() else math.nan


def _moments(values: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.array([values.sum(), np.square(values).sum()])


def _variation(moments: np.ndarray, clients: float, examples: float) -> float:
    """Standard deviation over mean."""
    mean, square = moments / clients
    return math.sqrt(max(0.0, square - mean * mean)) / mean if mean > 0 else math.nan


_POOLED: dict[Pooling, _Pooled] = {
    "mean": _Pooled(lambda values, n: values.sum(), lambda total, clients, examples: float(total) / clients),
    "worst tenth": _Pooled(
        lambda values, n: histogram(values), lambda counts, clients, examples: worst_tenth(counts, clients)
    ),
    "variation": _Pooled(_moments, _variation),
    "by size": _Pooled(lambda values, n: n @ values, lambda total, clients, examples: float(total) / examples),
    "root mean square by size": _Pooled(
        lambda values, n: n @ np.square(values), lambda total, clients, examples: math.sqrt(float(total) / examples)
    ),
    "of all bins": _Pooled(
        lambda values, n: values.sum(0), lambda bins, clients, examples: float(calibration_error(torch.as_tensor(bins)))
    ),
}
