"""How good predictions are: per client first, then over clients.

Everything here takes arrays. A client is a row (S, n, ...) with a mask; averages over clients are unweighted, those
called pooled weight by test size. Classification: accuracy, NLL, Brier score (sum over classes), ECE (15 equal bins
of the top probability). Regression: RMSE, NLL, CRPS, coverage of the central 90 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

BINS = 15
#: on fewer test examples a client's ECE, or coverage, says more of their number than of the model
MANY = 20


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
    here = torch.ones_like(y, dtype=log_probs.dtype) if mask is None else mask.to(log_probs.dtype)
    n = here.sum(1)
    probs = log_probs.exp()
    confidence, guess = probs.max(-1)
    right = (guess == y).to(probs.dtype)
    chosen = log_probs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    brier = probs.square().sum(-1) - 2 * chosen.exp() + 1
    bins = torch.zeros((*y.shape[:1], BINS, 3), dtype=probs.dtype, device=y.device)
    which = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    for k, value in enumerate((here, here * confidence, here * right)):
        bins[..., k].scatter_add_(1, which, value)
    rows = {"accuracy": right, "nll": -chosen, "brier": brier}
    result = {name: (value * here).sum(1) / n for name, value in rows.items()}
    return {"n": n, **result, "ece": calibration_error(bins), "bins": bins}


def calibration_error(bins: Tensor) -> Tensor:
    """Expected calibration error from counts (..., 15, 3): sum over bins of |confidence - accuracy|, by mass."""
    count, confidence, right = bins.unbind(-1)
    return (confidence - right).abs().sum(-1) / count.sum(-1)


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
    here = torch.ones_like(y) if mask is None else mask.to(y.dtype)
    n, draws = here.sum(1), len(mean)
    crps = inside = torch.full_like(y, float("nan"))
    if std is not None:
        distance, each = _absolute_moment(y - mean, std)
        crps, below = distance.mean(0) - 0.5 * mean_difference(mean, std), each.mean(0)
        inside = ((below >= 0.05) & (below <= 0.95)).to(y.dtype)
    squares = (y - mean.mean(0)).square()
    rows = {
        "nll": math.log(draws) - log_density.logsumexp(0),
        "crps": crps,
        "coverage90": inside,
        "rmse": squares,
    }
    result = {name: (value * here).sum(1) / n for name, value in rows.items()}
    return {"n": n, **result, "rmse": result["rmse"].sqrt()}


def _absolute_moment(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E|X| and P(X > 0) for X ~ N(mean, std^2)."""
    z = mean / std
    density, above = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi), torch.special.ndtr(z)
    return 2 * std * density + mean * (2 * above - 1), above


#: columns of a mixture's components that lie in a cache together
BLOCK = 1024
#: standard deviations beyond which a normal has no mass in double precision, and where exp(-x^2) has none
FAR, NOTHING = 8.5, 6.1


def mean_difference(mean: Tensor, std: Tensor) -> Tensor:
    """E|X - X'| of two independent draws of an equal mixture of K normals, (*shape), from their (K, *shape).

    By pairs that is K^2 absolute moments. On a circle of circumference P, |d| is P/4 - 2P/pi^2 sum_k cos(w_k d)/k^2
    over odd k, with w_k = 2 pi k / P; and E cos(w (X - X')) = |E exp(i w X)|^2, which for normals falls as
    exp(-w^2 std^2). So where P is twice as long as any two draws are apart, a few terms of K numbers each give it to
    rounding. Pairs remain where the normals are so narrow beside their distances that many terms would be needed.
    """
    shape, draws = mean.shape[1:], len(mean)
    blocks = zip(mean.flatten(1).split(BLOCK, 1), std.expand_as(mean).flatten(1).split(BLOCK, 1), strict=True)
    found = []
    for m, s in blocks:
        least = m.amin(0)
        reach = m.amax(0) - least + FAR * math.sqrt(2) * s.amax(0)
        terms = (NOTHING / (2 * math.pi) * reach / s.amin(0)).max() + 1
        # (in nanoseconds: a pair takes some 25, a term 2, its beginning 60; what is not finite is no reason to wait)
        found.append(_by_series(m - least, s, reach, int(terms)) if 60 + 2 * terms < 25 * draws else _by_pairs(m, s))
    return torch.cat(found).view(shape) if found else mean.new_zeros(shape)


def _by_series(m: Tensor, s: Tensor, reach: Tensor, terms: int) -> Tensor:
    """See :func:`mean_difference`: (K, n), (K, n), (n,) -> (n,)."""
    step = math.pi / reach  # w_1, for P = 2 reach
    turn = torch.polar(torch.ones_like(m), m * step)
    twice, total = turn * turn, torch.zeros_like(reach)
    alike = bool((s == s[0]).all())
    damping = -0.5 * ((s[:1] if alike else s) * step).square()
    for k in range(1, 2 * terms + 1, 2):
        damped = (k * k * damping).exp()
        centre = damped[0] * turn.mean(0) if alike else (damped * turn).mean(0)
        total = total + (centre.real.square() + centre.imag.square()) / k**2
        turn *= twice
    return reach / 2 - 4 / math.pi**2 * reach * total


def _by_pairs(m: Tensor, s: Tensor) -> Tensor:
    """See :func:`mean_difference`: (K, n), (K, n) -> (n,)."""
    total = _absolute_moment(torch.zeros_like(m), math.sqrt(2) * s)[0].sum(0)
    for k in range(len(m) - 1):  # one row of them at a time
        distance, _ = _absolute_moment(m[k + 1 :] - m[k], (s[k + 1 :].square() + s[k].square()).sqrt())
        total = total + 2 * distance.sum(0)
    return total / len(m) ** 2


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
    names = ("accuracy", "nll", "brier", "ece") if task == "classification" else ("rmse", "nll", "crps", "coverage90")
    result = {name: float(np.mean(rows[name][has])) for name in names}
    weight = n[has] / n[has].sum()
    if task == "classification":
        accuracy = np.sort(rows["accuracy"][has])
        result["worst10_accuracy"] = float(accuracy[: max(1, math.ceil(0.1 * len(accuracy)))].mean())
        result["accuracy_cv"] = float(accuracy.std() / accuracy.mean()) if accuracy.mean() > 0 else float("nan")
        result["accuracy_pooled"] = float(weight @ rows["accuracy"][has])
        result["ece_pooled"] = float(calibration_error(torch.as_tensor(np.asarray(rows["bins"])[has].sum(0))))
    else:
        result["rmse_pooled"] = float(np.sqrt(weight @ np.square(rows["rmse"][has])))
    return result


def predictive_entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of predictive distributions (..., C): (...)."""
    return -(log_probs.exp() * log_probs.clamp_min(-1e30)).sum(-1)


def ood_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Area under the ROC curve of an uncertainty score: how surely a strange input scores above a familiar one."""
    from sklearn.metrics import roc_auc_score

    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return float(roc_auc_score(labels, np.r_[inside, outside]))
