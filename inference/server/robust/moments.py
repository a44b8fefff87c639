"""Sites whose sums before the first round are unlike the others': wrong units, wrong columns, other patients.

Of each column a site's mean and standard deviation are compared, in units of the median site's standard deviation; a
column counts as a round does of messages (:mod:`.standing`). Who is far from the median of the others is named, then
left out, and the others are looked at again. No number is changed by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hierfl.data.client_names import in_words

from ...state import State
from .standing import FEWEST, LEAST_MEASURE, distances, medians

#: no spread between sites counts as less: of logarithms of standard deviations, and of means
LEAST_SPREADS = (0.2, 0.2)
#: bounds by number of sites, of up to 30 columns, by ``tests/support/robust_bounds.py``
MOMENT_BOUNDS = {4: 23.0, 5: 14.2, 6: 9.2, 8: 13.2, 10: 12.6, 12: 12.8, 20: 14.7, 50: 18.1}
#: a variance that is less, as a share of the mean square, is none
CONSTANT = 1e-12
WORDS = ("the spread", "the mean")
#: fewer than four have no majority that a spread can be taken of
THREE = 3
#: of three sites, how far one is from both others, of logarithms of standard deviations and of means, where these two
#: are no farther apart than the second row says. In simulations at most 3.1 % of studies of honest sites have a named
#: site, with up to thirty columns of normal, heavy or skewed tails, by tests/support/robust_bounds.py.
APART_OF_THREE, TOGETHER_OF_THREE = (np.log(8.0), 10.0), (np.log(2.0), 2.0)


def compared(sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """Standardised, (K, J, 2): logarithm of the standard deviation and the mean of each of K columns at each site.

    A column that is constant at a site has no standard deviation there, and says nothing of units.

    Args:
        sums: "n" (J,), "total" and "square" (J, K), around centres that all sites know.
    """
    n = np.maximum(1.0, sums["n"])[:, None]
    mean = sums["total"] / n
    sd = np.sqrt(np.maximum(0.0, sums["square"] / n - mean**2))
    sd = np.where(sd**2 > CONSTANT * sums["square"] / n, sd, np.nan)
    unit = medians(sd[None])[0]
    standardised = np.stack([np.maximum(np.log(sd / unit), LEAST_MEASURE), mean / unit], -1)
    return standardised.transpose(1, 0, 2)


def unlike(values: np.ndarray) -> list[tuple[int, int, int, float]]:
    """The sites that stand out, one after the other: place, column, place in :data:`WORDS`, distance in spreads.

    Args:
        values: of :func:`compared`.
    """
    if values.shape[1] == THREE:
        return _of_three(values)
    outliers, left = list[tuple[int, int, int, float]](), list(range(values.shape[1]))
    while len(left) >= FEWEST:
        far = np.abs(distances(values[:, left], LEAST_SPREADS))
        if not np.isfinite(far).any():
            break
        column, row, what = np.unravel_index(np.nanargmax(far), far.shape)
        sizes = sorted(MOMENT_BOUNDS)
        if far[column, row, what] <= np.interp(len(left), sizes, [MOMENT_BOUNDS[size] for size in sizes]):
            break
        outliers.append((left[row], int(column), int(what), float(far[column, row, what])))
        del left[int(row)]
    return outliers


def _of_three(values: np.ndarray) -> list[tuple[int, int, int, float]]:
    """The one of three sites that is far from both others, which agree: a gross error, such as months for years."""
    largest: tuple[int, int, int, float] | None = None
    for j in range(THREE):
        first, second = (values[:, k] for k in range(THREE) if k != j)
        gap = np.minimum(np.abs(values[:, j] - first), np.abs(values[:, j] - second))
        agree = np.abs(first - second)
        far = np.abs(values[:, j] - (first + second) / 2) / np.maximum(np.array(LEAST_SPREADS), agree / 2)
        far = np.where((gap > APART_OF_THREE) & (agree < TOGETHER_OF_THREE), far, 0.0)
        column, what = np.unravel_index(far.argmax(), far.shape)
        if far[column, what] > (largest[3] if largest else 0.0):
            largest = j, int(column), int(what), float(far[column, what])
    return [] if largest is None else [largest]


def lines(sites: Mapping[str, State], columns: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each site that stands out by its sums of a step.

    Args:
        sites: what each has answered.
        columns: names by the prefix of the sums that are about them.
    """
    words, ids = list[str](), list(sites)
    for prefix, names in columns.items():
        keys = {key: f"{prefix}{key}" for key in ("n", "total", "square")}
        if not names or any(key not in sums for key in keys.values() for sums in sites.values()):
            continue
        values = compared({k: np.stack([sites[j][key].double().cpu().numpy() for j in ids]) for k, key in keys.items()})
        words += [
            f"{in_words(ids[j])} stands out before the first round by {WORDS[what]} of {names[column]}, {far:.0f} "
            "spreads from the others': are its units, and its column, those of the dictionary?"
            for j, column, what, far in unlike(values)
        ]
    return words
