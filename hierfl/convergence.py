"""R-hat and bulk ESS of many numbers at once, as ArviZ has them of one (a millisecond each).

Vehtari, Gelman, Simpson, Carpenter and Buerkner (Bayesian Analysis 2021): chains are cut in halves, and
draws replaced by normal scores of their ranks.
"""

from __future__ import annotations

import numpy as np

#: of more numbers than this it is not computed how well their chains mixed: it takes a millisecond for each
MAX_DIAGNOSED_NUMBERS = 20_000
#: draws that are worked on at a time
DRAWS_AT_A_TIME = 1_000_000


def rhat_and_ess(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank-normalised split R-hat, the larger one of bulk and tail, and bulk effective sample size.

    Args:
        draws: (chains, draws, N), at least two chains of four draws, or one of eight (whose halves are compared).

    Returns:
        Two arrays (N,), NaN where draws are.
    """
    chains, kept, numbers = draws.shape
    size, parts = max(1, DRAWS_AT_A_TIME // (chains * kept)), []
    for first in range(0, numbers, size):
        block = draws[:, :, first : first + size].astype(float).transpose(2, 0, 1)  # n, chains, draws
        half = kept // 2
        halves = np.concatenate([block[:, :, :half], block[:, :, kept - half :]], 1)
        scores = _normal_scores(halves)
        folded = np.abs(halves - np.median(halves, (1, 2), keepdims=True))
        bulk, tail = _rhat(scores), _rhat(_normal_scores(folded))
        rhat = np.where(tail > bulk, tail, bulk)  # of what hardly moves the tail's may be no number
        complete = ~np.isnan(halves).any((1, 2))
        parts.append(np.where(complete, [rhat, _ess(scores)], np.nan))
    rhat, ess = np.concatenate(parts, 1) if parts else np.empty((2, 0))
    return rhat, ess


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Blom's normal scores of the ranks of all draws of a number, (n, chains, draws)."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    flat = values.reshape(len(values), -1)
    twice = np.arange(2 * flat.shape[1] + 1)  # the mean of tied ranks is a whole number or a half
    table = ndtri((twice / 2 - 3 / 8) / (flat.shape[1] + 1 / 4))
    ranks = rankdata(np.nan_to_num(flat, nan=0.0), axis=1)
    return table[(2 * ranks).round().astype(int)].reshape(values.shape)


def _rhat(values: np.ndarray) -> np.ndarray:
    n = values.shape[2]
    between, within = n * values.mean(2).var(1, ddof=1), values.var(2, ddof=1).mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):  # of what never moves
        return np.sqrt((between / within + n - 1) / n)


def _ess(values: np.ndarray) -> np.ndarray:
    """Effective sample sizes (n,), by Geyer's initial monotone sequences of the chains' mean autocorrelations."""
    from scipy.fft import irfft, next_fast_len, rfft

    (numbers, chains, n), total = values.shape, values.shape[1] * values.shape[2]
    centred = values - values.mean(2, keepdims=True)
    length = next_fast_len(2 * n, real=True)
    power = np.square(np.abs(rfft(centred, length, axis=2))).mean(1)
    covariance = irfft(power, length, axis=1)[:, :n] / n
    within = covariance[:, 0] * n / (n - 1)
    variance = covariance[:, 0] + (values.mean(2).var(1, ddof=1) if chains > 1 else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1 - (within[:, None] - covariance) / variance[:, None]
    rho[:, 0] = 1
    kept, rows = np.zeros_like(rho), np.arange(numbers)
    kept[:, :2] = rho[:, :2]
    last, end, t = np.zeros(numbers, int), np.ones(numbers, int), 1  # where the last pair begins; where it stopped
    going = rho[:, 0] + rho[:, 1] > 0
    while t < n - 3 and going.any():
        pair = rho[:, t + 1] + rho[:, t + 2]
        good = going & (pair >= 0)
        kept[good, t + 1 : t + 3] = rho[good, t + 1 : t + 3]
        last[going], end[going] = t + 1, t + 2
        going &= pair > 0
        t += 2
    most = end - 2
    positive = rho[rows, last] > 0
    kept[rows[positive], most[positive] + 1] = rho[rows[positive], last[positive]]
    for t in range(1, int(most.max(initial=0)) - 1, 2):
        before = kept[:, t - 1] + kept[:, t]
        rises = (t <= most - 2) & (kept[:, t + 1] + kept[:, t + 2] > before)
        kept[rises, t + 1 : t + 3] = before[rises, None] / 2
    sums = np.concatenate([np.zeros((numbers, 1)), kept.cumsum(1)], 1)
    tau = -1 + 2 * sums[rows, most + 1] + kept[rows, most + 1]
    effective = total / np.maximum(tau, 1 / np.log10(total))
    still = np.ptp(values, (1, 2)) < np.finfo(float).resolution
    return np.where(still, total, np.where(np.isnan(kept).any(1), np.nan, effective))
