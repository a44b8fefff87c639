"""An exact sampler of the discrete Gaussian distribution on the integers.

Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, algorithms 1 to 3, for all
elements of an array at once. All decisions are comparisons of whole numbers: no rounding enters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

#: standard deviations are whole numbers up to this, so that every product fits 63 bits
MOST_SD = 2**22

#: so many random 63-bit words
Words = Callable[[int], np.ndarray]


def discrete_gaussian(count: int, sd: int, words: Words) -> np.ndarray:
    """Draws with probabilities in proportion to exp(-k^2 / (2 sd^2)) for every integer k.

    Args:
        count: how many.
        sd: a whole number from 1 to :data:`MOST_SD`; the standard deviation where it is 1 or more to 1e-7.
        words: a source of uniform words in [0, 2^63), int64.

    Returns:
        (count,), int64.

    Raises:
        ValueError: for another standard deviation.
    """
    if sd != int(sd) or not 1 <= sd <= MOST_SD:
        raise ValueError(f"sd must be a whole number from 1 to {MOST_SD}, not {sd}")
    sd, draws, num_drawn = int(sd), np.empty(count, np.int64), 0
    while num_drawn < count:
        drawn = _discrete_laplace(max(16, int(1.5 * (count - num_drawn))), sd, words)
        # Of scale sd, so that the ratio of the two is exp(-(|k| - sd)^2 / (2 sd^2)) up to a constant.
        kept = drawn[_bernoulli_exp((np.abs(drawn) - sd) ** 2, 2 * sd * sd, words)][: count - num_drawn]
        draws[num_drawn : num_drawn + len(kept)] = kept
        num_drawn += len(kept)
    return draws


def _discrete_laplace(count: int, scale: int, words: Words) -> np.ndarray:
    """About ``count`` draws with probabilities in proportion to exp(-|k| / scale)."""
    low = _below(np.full(count, scale, np.int64), words)
    low = low[_bernoulli_exp(low, scale, words)]
    high = np.zeros(len(low), np.int64)
    going = np.arange(len(low))
    while len(going):
        going = going[_bernoulli_exp(np.ones(len(going), np.int64), 1, words)]
        high[going] += 1
    size, negative = low + scale * high, words(len(low)) & 1 == 1
    kept = ~(negative & (size == 0))
    return np.where(negative, -size, size)[kept]


def _bernoulli_exp(numerator: np.ndarray, denominator: int, words: Words) -> np.ndarray:
    """Whether each of independent events of probability exp(-numerator / denominator) happens."""
    happens = np.ones(len(numerator), bool)
    whole, rest = numerator // denominator, numerator % denominator
    going = np.flatnonzero(whole)
    while len(going):
        happened = _series(np.ones(len(going), np.int64), 1, words)
        happens[going[~happened]] = False
        whole[going] -= 1
        going = going[happened & (whole[going] > 0)]
    going = np.flatnonzero(happens)
    happens[going] = _series(rest[going], denominator, words)
    return happens


def _series(numerator: np.ndarray, denominator: int, words: Words) -> np.ndarray:
    """Likewise, for ratios in [0, 1]: the first k at which a draw of probability ratio / k fails is odd."""
    odd, going, k = np.ones(len(numerator), bool), np.arange(len(numerator)), 1
    while len(going):
        goes_on = _below(np.full(len(going), k * denominator, np.int64), words) < numerator[going]
        odd[going[~goes_on]] = k % 2 == 1
        going, k = going[goes_on], k + 1
    return odd


def _below(most: np.ndarray, words: Words) -> np.ndarray:
    """Uniform integers in [0, most), by rejection of words."""
    integers, going = np.empty(len(most), np.int64), np.arange(len(most))
    while len(going):
        word, limit = words(len(going)), most[going]
        # The largest multiple of the limit; above it a remainder would be too frequent.
        fits = word - word % limit <= np.iinfo(np.int64).max - limit + 1
        integers[going[fits]] = (word % limit)[fits]
        going = going[~fits]
    return integers
