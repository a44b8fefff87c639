"""Which clients are padded together, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..devices import send

#: examples, padding included, that cost about as much as one more pass through a model: decides about buckets
EXAMPLES_PER_PASS = 512


def buckets(
    sizes: Sequence[int], most: float = float("inf"), per_pass: int = EXAMPLES_PER_PASS
) -> Iterator[tuple[int, int]]:
    """Cuts rows, largest first, so that little is padded: a new bucket where padding would cost more than a pass.

    Args:
        sizes: of the rows, descending.
        most: examples, padding included, that a bucket of several rows holds.
        per_pass: what is as dear as one more pass, in the unit of sizes.
    """
    first = total = 0
    for row, n in enumerate(sizes):
        total += n
        padded = sizes[first] * (row + 1 - first)
        if row > first and (padded - total > per_pass + total // 4 or padded > most):
            yield first, row
            first, total = row, n
    if len(sizes):
        yield first, len(sizes)


def padded_places(
    firsts: Sequence[int], sizes: Sequence[int], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor | None]:
    """Stretches of places as one tensor (S, n), and its mask (None where nothing is padded); n is at least 1.

    Args:
        firsts: where each row's begins; it is padded with this position.
        sizes: how many places each row has.
        device: of what is returned.
    """
    width = max(1, *sizes) if sizes else 1
    first, position = send(firsts, device)[:, None], torch.arange(width, device=device)
    if min(sizes, default=0) == width:
        return first + position, None
    mask = position < send(sizes, device)[:, None]
    return first + position * mask, mask
