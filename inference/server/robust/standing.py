"""Which clients stand out: robust distances of what is measured of them, with bounds that honest ones seldom pass.

A measure's distance is that from the median of all other clients, in units of their spread: their root mean square
distance from it, from eight clients on without the furthest tenth, pooled over the rounds so far. A client is named
where the largest distance over rounds and measures passes a bound; a direction counts as it has been in half of the
rounds. Then it is left out, and the others are looked at
again.

How far a client's own estimate is from what the others expect is in standard errors. It is compared with the others'
own such distances, each from the rest without the client in question, and with one (:func:`estimate_bound`).

Bounds are the 95 % quantiles of the largest distance of honest clients, simulated with spreads that are normal, of
heavy tails (t with five degrees of freedom), and with one client three deviations from the others: the largest of the
three (``tests/support/robust_bounds.py``). So a run of honest clients names one in at most about 5 % of runs.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: columns of what is measured, and the words for who stands out by them
WORDS = (
    "the size of its message", "its direction", "its influence", "its own estimate", "its information per row",
    "an earlier message, sent again", "messages that were rejected", "the spread of its rows", "its own effects",
    "answers that contradict each other",
)  # fmt: skip
DIRECTION = 1
ESTIMATE, INFORMATION, AGAIN, REJECTED, SPREAD, EFFECTS, MOVES = range(3, 10)
#: no spread counts as less: logarithms of sizes and influences, and Fisher's z of the angle
LEAST_SPREAD = (0.3, 0.15, 0.3)
#: standardised measures are no less: small messages and influences are no lies
LEAST_MEASURE = -3.0
#: fewer clients are not compared
FEWEST = 4
#: from so many clients on the spread is without the furthest, this share of them and at least one
MIN_CLIENTS_TO_TRIM, TRIMMED_SHARE = 8, 0.1
#: numbers that are compared at a time
LARGEST = 2**20
#: bounds by number of clients, in a single round and from ten rounds on
BOUNDS = {
    4: (21.6, 8.7), 5: (12.3, 7.8), 6: (9.3, 6.9), 8: (10.4, 8.5), 10: (7.7, 7.5), 12: (7.2, 7.2), 20: (7.2, 8.1),
    50: (8.0, 8.2),
}  # fmt: skip
LONG_ROUNDS = 10
#: likewise of distances of estimates
ESTIMATE_BOUNDS = {4: 7.0, 5: 6.5, 6: 5.6, 8: 6.5, 10: 5.7, 12: 5.7, 20: 6.2, 50: 6.7}


@dataclass(frozen=True)
class StandsOut:
    """A client that stands out.

    Attributes:
        client: its position.
        round: in which it did most, from 1.
        what: place in :data:`WORDS`.
        distance: in spreads; not a number where there is none.
    """

    client: int
    round: int
    what: int
    distance: float

    @property
    def words(self) -> str:
        """The measure by which the client stands out, in words."""
        return WORDS[self.what]


@functools.cache
def bound(clients: int, rounds: int) -> float:
    """The largest distance that honest clients have, in 95 % of runs."""
    sizes = np.array(sorted(BOUNDS))
    once, often = np.array([BOUNDS[size] for size in sizes]).T
    share = min(1.0, np.log(max(1, rounds)) / np.log(LONG_ROUNDS))
    return float((1 - share) * np.interp(clients, sizes, once) + share * np.interp(clients, sizes, often))


@functools.cache
def estimate_bound(clients: int) -> float:
    """The largest distance of honest clients' own estimates, in 95 % of runs."""
    return float(np.interp(clients, sorted(ESTIMATE_BOUNDS), [ESTIMATE_BOUNDS[k] for k in sorted(ESTIMATE_BOUNDS)]))


def standardised(measured: np.ndarray) -> np.ndarray:
    """What is compared, large where a client is suspicious: (T, J, 3) of measures (T, J, 3 or more)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        size, cosine, influence = (measured[..., k] for k in range(3))
        angle = -np.arctanh(np.clip(cosine, -0.9999, 0.9999))
        parts = [np.log(size), np.where(cosine < 0, angle, np.minimum(angle, 0)), np.log(influence)]
    values = np.stack(parts, -1)
    return np.maximum(values, LEAST_MEASURE)  # who sends nothing new is no liar


def without_furthest(squares: np.ndarray, clients: int) -> np.ndarray:
    """Squares (T, n, ...) of the other clients without those of the furthest, where there are many clients."""
    ordered = np.sort(squares, 1)  # what is no number comes last
    return ordered[:, : -max(1, round(TRIMMED_SHARE * clients))] if clients >= MIN_CLIENTS_TO_TRIM else ordered


def medians(values: np.ndarray) -> np.ndarray:
    """Medians over the second dimension of (T, n, ...), NaN left out: (T, ...); NaN where all are."""
    ordered, count = np.sort(values, 1), np.isfinite(values).sum(1, keepdims=True)  # what is no number comes last
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, max(0, values.shape[1] - 1))
    return (0.5 * (np.take_along_axis(ordered, low, 1) + np.take_along_axis(ordered, high, 1)))[:, 0]


def distances(values: np.ndarray, least_spread: Sequence[float] = LEAST_SPREAD) -> np.ndarray:
    """The distances of values (T, J, M) from the median of the others, the same shape; NaN where nothing is known.

    Args:
        values: what is compared.
        least_spread: of each of the M, no less.
    """
    clients, numbers = values.shape[1:]
    both = np.empty((2, *values.shape))
    places = np.arange(clients - 1)
    for rows in np.array_split(np.arange(clients), min(clients, 1 + values.size * clients // LARGEST)):
        others = values[:, places + (places >= rows[:, None])]  # (T, rows, J - 1, M)
        parts = _beside(values[:, rows].reshape(-1, numbers), others.reshape(-1, clients - 1, numbers), clients)
        both[:, :, rows] = [part.reshape(-1, len(rows), numbers) for part in parts]
    far, spread = both
    least = np.array(least_spread[: values.shape[-1]])
    squares, counts = np.nan_to_num(np.maximum(spread, least) ** 2), np.isfinite(spread).sum(0)
    pooled = np.sqrt(squares.sum(0) / np.maximum(1, counts))
    return far / np.where(pooled > 0, pooled, 1.0)


def _beside(own: np.ndarray, others: np.ndarray, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """The others' median of (N, M) and (N, J - 1, M), and their spread; not a number where they are too few."""
    enough = np.isfinite(others).sum(1) >= FEWEST - 1
    filled = np.where(enough[:, None], others, 0.0)
    middle = medians(filled)
    squares = without_furthest((filled - middle[:, None]) ** 2, clients)
    finite = np.isfinite(squares)
    spread = np.sqrt(np.where(finite, squares, 0).sum(1) / np.maximum(1, finite.sum(1)))
    return np.where(enough, own - middle, np.nan), np.where(enough & finite.any(1), spread, np.nan)


def lasting(far: np.ndarray) -> np.ndarray:
    """Distances (T, J) as they have been in half of the rounds so far.

    Near the end of a fit honest clients' changes are small, and a single one of them may point anywhere. Who turns its
    message round does so again and again.
    """
    medians_so_far = np.full(far.shape, np.nan)
    for j, column in enumerate(far.T.tolist()):
        ordered: list[float] = []
        for t, value in enumerate(column):
            if value == value:
                bisect.insort(ordered, value)
            if ordered:
                medians_so_far[t, j] = 0.5 * (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2])
    return medians_so_far


def stand_out(measured: np.ndarray) -> list[StandsOut]:
    """Who stands out, most first.

    Args:
        measured: (T, J, M), of :data:`~.measures.MEASURES` and what else a method knows.
    """
    values, outliers = standardised(measured), list[StandsOut]()
    left = list(range(values.shape[1]))
    while len(left) >= FEWEST:
        far = distances(values[:, left])
        far[..., DIRECTION] = lasting(far[..., DIRECTION])
        if not np.isfinite(far).any():
            break
        t, row, column = np.unravel_index(np.nanargmax(far), far.shape)
        rounds = int(np.isfinite(far).any((1, 2)).sum())
        if far[t, row, column] <= bound(len(left), rounds):
            break
        outliers.append(StandsOut(left[row], int(t) + 1, int(column), float(far[t, row, column])))
        del left[int(row)]
    return outliers
