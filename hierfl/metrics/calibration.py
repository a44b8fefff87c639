"""What calibration needs of each client: sums for a temperature, counts of scores, and how its sets of labels do.

A client is a row (S, n, ...) with a mask, as in :mod:`hierfl.metrics.classification`. All of it adds up over clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from .pooling import MetricSums, histogram, worst_tenth

#: of a range of scores: so many cells are counted in
CELLS = 1000
#: log probabilities below this are taken for it: no temperature makes anything of a probability of exactly 0
LEAST_LOG_PROB = -1e4


def tempered(log_probs: Tensor, power: float) -> Tensor:
    """Log probabilities at a temperature: log of p^power / sum p^power, power = 1 / T (Guo et al. 2017).

    Args:
        log_probs: normalised, (..., C).
        power: 1 changes nothing, to the bit.
    """
    return log_probs if power == 1.0 else (power * log_probs).log_softmax(-1)


def tempering_rows(log_probs: Tensor, y: Tensor, mask: Tensor | None, power: float) -> dict[str, Tensor]:
    """Each row's negative log likelihood at a temperature, summed over its examples, and its derivatives in the power.

    With l = log p and q = p^power / sum: the slope is sum_i E_q[l_i] - l_i(y_i), the curvature sum_i Var_q[l_i] >= 0.

    Args:
        log_probs: normalised, (S, n, C).
        y: labels, (S, n).
        mask: (S, n), False where padded; None for no padding.
        power: 1 / T.

    Returns:
        n: (S,); terms: (S, 4): how many examples, value, slope and curvature; zero where they are not finite (of a
        client that has diverged: it says nothing).
    """
    values = log_probs.double().clamp(min=LEAST_LOG_PROB)
    scaled = power * values
    weights = scaled.softmax(-1)
    mean = (weights * values).sum(-1)
    chosen = values.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    spread = (weights * (values - mean.unsqueeze(-1)).square()).sum(-1)
    derivatives = torch.stack([torch.ones_like(mean), scaled.logsumexp(-1) - power * chosen, mean - chosen, spread], -1)
    if mask is not None:
        derivatives = torch.where(mask.unsqueeze(-1), derivatives, 0.0)
    terms = derivatives.sum(1)
    return {
        "n": terms[:, 0].to(log_probs.dtype),
        "terms": torch.where(terms.isfinite().all(-1, keepdim=True), terms, 0.0),
    }


def label_scores(log_probs: Tensor) -> Tensor:
    """How strange each label would be: the probability of all labels that are likelier; where that is no number, 1.

    Of equally likely ones the first is taken for the likelier. The likeliest label has exactly 0, so that no set is
    empty. This is the score of adaptive sets (Romano, Sesia & Candes, 2020) without the label's own probability and
    without their randomisation. The page on calibration says what 1 - p would do where clients differ.
    """
    order = torch.sort(log_probs, dim=-1, descending=True, stable=True)
    probs = order.values.double().exp()
    likelier = (probs.cumsum(-1) - probs).nan_to_num(nan=1.0).clamp(0.0, 1.0)
    return torch.empty_like(likelier).scatter_(-1, order.indices, likelier)


def edges(low: float, high: float) -> np.ndarray:
    """The ends of :data:`CELLS` cells of equal width, (CELLS + 1,)."""
    return np.linspace(low, high, CELLS + 1)


def score_rows(log_probs: Tensor, y: Tensor, mask: Tensor | None, low: float, high: float) -> dict[str, Tensor]:
    """Each row's scores of the true labels, counted in cells.

    Args:
        log_probs, y, mask: as for :func:`tempering_rows`.
        low, high: what the cells divide.

    Returns:
        n: (S,); counts: (S, CELLS + 2): at most ``low``; in each cell, its upper end included; above ``high``.
    """
    scores = label_scores(log_probs).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    ends = torch.as_tensor(edges(low, high), device=scores.device)
    weight = torch.ones_like(scores) if mask is None else mask.to(scores.dtype)
    counts = scores.new_zeros((len(scores), CELLS + 2))
    counts.scatter_add_(1, torch.searchsorted(ends, scores.contiguous()), weight)
    return {"n": weight.sum(1).to(log_probs.dtype), "counts": counts}


def set_rows(log_probs: Tensor, y: Tensor, mask: Tensor | None, threshold: float) -> dict[str, Tensor]:
    """How each row's sets of labels do: a set holds the labels whose score is at most the threshold.

    Args:
        log_probs, y, mask: as for :func:`tempering_rows`.
        threshold: of the scores.

    Returns:
        n, set_coverage (how often it holds the true label), set_size: (S,).
    """
    inside = label_scores(log_probs) <= threshold
    size = inside.sum(-1).double()
    weight = torch.ones_like(size) if mask is None else mask.to(size.dtype)
    contains = inside.gather(-1, y.unsqueeze(-1)).squeeze(-1).to(size.dtype)
    n = weight.sum(1)
    rows = {"set_coverage": contains, "set_size": size}
    return {"n": n.to(log_probs.dtype), **{name: (value * weight).sum(1) / n for name, value in rows.items()}}


#: of each client's sets
SET_METRICS = ("set_coverage", "set_size")


def set_sums(rows: Mapping[str, np.ndarray], validation: np.ndarray) -> MetricSums:
    """Sums over clients of how their sets do.

    Args:
        rows: as of :func:`set_rows`, (J,) each; n alone where none of them has data.
        validation: how many validation examples each has, (J,).
    """
    n = np.asarray(rows["n"], dtype=float)
    has = n > 0
    values = {name: np.asarray(rows[name], dtype=float)[has] if has.any() else np.zeros(0) for name in SET_METRICS}
    sums = {"clients": np.asarray(float(has.sum())), "examples": np.asarray(n.sum())}
    sums |= {name: np.asarray(value.sum()) for name, value in values.items()}
    covered = values["set_coverage"]
    unheard = np.asarray(validation)[has] == 0
    sums |= {"unheard": np.asarray(float(unheard.sum())), "unheard_coverage": np.asarray(covered[unheard].sum())}
    return {**sums, "set_coverage_pooled": np.asarray(n[has] @ covered), "worst": histogram(covered)}


def from_set_sums(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """How the sets do over clients; empty where none has data.

    Returns:
        set_coverage, set_size: unweighted means over clients; set_coverage_pooled: over examples;
        set_coverage_worst10: the mean of the worst tenth of the clients (right to half of one in
        :data:`~hierfl.metrics.pooling.HISTOGRAM`); set_coverage_unheard: the mean over those without validation data,
        if there are any.
    """
    clients, examples = float(sums["clients"]), float(sums["examples"])
    if not clients:
        return {}
    metrics = {name: float(sums[name]) / clients for name in SET_METRICS}
    metrics["set_coverage_pooled"] = float(sums["set_coverage_pooled"]) / examples
    metrics["set_coverage_worst10"] = worst_tenth(sums["worst"], clients)
    if unheard := float(sums["unheard"]):
        metrics["set_coverage_unheard"] = float(sums["unheard_coverage"]) / unheard
    return metrics


def conformal_rank(n: int, alpha: float) -> int:
    """Which of n sorted calibration scores is the threshold: ceil(n (1 - alpha)) + 1.

    That is at most one more than ceil((n + 1) (1 - alpha)), which would do if all scores were exchangeable: with it
    those of different clients need not be (docs: calibration). More than n: no score is a threshold, all labels stay.
    """
    return n - math.floor(n * Fraction(str(alpha))) + 1
