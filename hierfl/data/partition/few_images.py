"""Some clients with few examples, the others with more."""

from __future__ import annotations

import numpy as np

from ...errors import UserError
from ...plurals import counted
from ..pool import PooledDataset
from .cells import labels_of, refilled
from .registry import Index, Parts, split

#: training examples of small clients, one or the other at random, and of the others
SMALL_SIZES, LARGE_SIZE = (5, 10), 25


@split(
    "few-images", "C labels each; percent=P (50) of the clients have 5 or 10 examples, the others 25", "C",
    options=("percent",),
)  # fmt: skip
def few_images(
    pool: PooledDataset, clients: int, parameter: float, rng: np.random.Generator, percent: float = 50
) -> Parts:
    """C labels each, dealt from a list that is refilled; sizes as in FedPop's Figure 3, spread evenly over the labels.

    A client with fewer examples than labels has one of as many of its labels, drawn at random. Its test set is all test
    examples of its C labels: which images the paper tests on is not said.
    """
    if percent > 100:
        raise UserError(f"percent is at most 100; got {percent:g}")
    labels = labels_of(pool)
    assigned = refilled(labels, clients, int(parameter), rng)
    left = {int(k): rng.permutation(np.flatnonzero(pool.y_train == k)) for k in labels}
    small = rng.permutation(clients)[: round(percent / 100 * clients)]
    sizes = np.full(clients, LARGE_SIZE)
    sizes[small] = rng.choice(SMALL_SIZES, len(small))
    mine: list[Index] = []
    for hand, size in zip(assigned, sizes.tolist(), strict=True):
        order = rng.permutation(hand).tolist()
        parts = []
        for position, k in enumerate(order):
            many = size // len(order) + (position < size % len(order))
            if many > len(left[k]):
                raise UserError(
                    f"{counted(clients, 'client')} with {counted(size, 'example')} are more than {pool.name} has of "
                    f"class {k}"
                )
            parts.append(left[k][:many])
            left[k] = left[k][many:]
        mine.append(np.sort(np.concatenate(parts)))
    tests = [np.flatnonzero(np.isin(pool.y_test, hand)) + len(pool.y_train) for hand in assigned]
    return mine, tests
