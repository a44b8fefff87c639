"""Ragged index sets as padded tensors, and which clients are padded together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

#: examples (padding included) that cost about as much as one more pass through a model: decides about buckets
EXAMPLES_PER_PASS = 512


def buckets(sizes: Sequence[int], most: float = float("inf")) -> Iterator[tuple[int, int]]:
    """Cuts rows, largest first, so that little is padded: a new bucket where padding would cost more than a pass.

    Args:
        sizes: of the rows, descending.
        most: examples, padding included, that a bucket of several rows holds.
    """
    first = total = 0
    for row, n in enumerate(sizes):
        total += n
        padded = sizes[first] * (row + 1 - first)
        if row > first and (padded - total > EXAMPLES_PER_PASS + total // 4 or padded > most):
            yield first, row
            first, total = row, n
    if len(sizes):
        yield first, len(sizes)


def pad(index: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Ragged index sets as one (S, n) tensor and its mask (None where nothing is padded); n is at least 1.

    A row is padded with its own first index: what is masked is still computed, and no other client's data belong there.
    """
    lengths = [len(i) for i in index]
    width = max(1, *lengths) if lengths else 1
    if min(lengths) == width:
        return torch.stack(list(index)), None
    padded = torch.nn.utils.rnn.pad_sequence(list(index), batch_first=True)
    if padded.shape[1] < width:
        padded = padded.new_zeros((len(index), width))
    counts = torch.tensor(lengths, device=padded.device)
    mask = torch.arange(width, device=padded.device) < counts[:, None]
    return torch.where(mask, padded, padded[:, :1]), mask
