"""Each client's classification metrics. A client is a row (S, n, ...) with a mask.

Accuracy, NLL, Brier score (sum over classes), ECE (15 equal bins of the top probability).
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15


def classification_rows(log_probs: Tensor, y: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Each row's metrics, and the counts that a reliability diagram is drawn from.

    Args:
        log_probs: normalised log probabilities, (S, n, C).
        y: labels, (S, n).
        mask: (S, n), False where padded; None for no padding.

    Returns:
        n, accuracy, nll, brier, ece: (S,), NaN for rows without examples; bins: (S, 15, 3) with how many examples
        fell in each bin, the sum of their confidences, and how many were right.
    """
    weight = torch.ones_like(y, dtype=log_probs.dtype) if mask is None else mask.to(log_probs.dtype)
    n = weight.sum(1)
    probs = log_probs.exp()
    confidence, guess = probs.max(-1)
    right = (guess == y).to(probs.dtype)
    chosen = log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    brier = probs.square().sum(-1) - 2 * chosen.exp() + 1
    bins = torch.zeros((*y.shape[:1], BINS, 3), dtype=probs.dtype, device=y.device)
    which = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    for k, value in enumerate((weight, weight * confidence, weight * right)):
        bins[..., k].scatter_add_(1, which, value)
    rows = {"accuracy": right, "nll": -chosen, "brier": brier}
    result = {name: (value * weight).sum(1) / n for name, value in rows.items()}
    return {"n": n, **result, "ece": calibration_error(bins), "bins": bins}


def calibration_error(bins: Tensor) -> Tensor:
    """Expected calibration error from counts (..., 15, 3): sum over bins of |confidence - accuracy|, by mass."""
    count, confidence, right = bins.unbind(-1)
    return (confidence - right).abs().sum(-1) / count.sum(-1)
