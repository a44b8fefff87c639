"""Some of every client's examples, drawn at random, given the others."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hierfl.data.batch import Batch, Given
from hierfl.data.padding import padded_places
from hierfl.devices import send
from hierfl.rng import permutations

from .chunk import ClientChunk


def held_out(chunk: ClientChunk, batch: Batch, share: float, phase: object, step: int) -> Batch:
    """A share of each row's examples, at least one, given the others: another random part at every step.

    It weighs as much as all n_j examples, as any minibatch does.

    Args:
        chunk: the rows, whose keys the parts are drawn by.
        batch: all their examples.
        share: of a client's examples.
        phase, step: the occasion.
    """
    device, stream = batch.x.device, (*chunk.stream(phase), "held out", step)
    sizes = chunk.sizes
    num_held_out = [max(1, round(share * n)) for n in sizes]
    # Each row's order of its own places, which become places in the padded batch, row after row.
    orders = permutations(chunk.keys, sizes, [1] * len(sizes), *stream)
    firsts = [sum(sizes[:row]) for row in range(len(sizes))]
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    order = send(orders + batch.width * owner, device)

    def part(begins: list[int], counts: list[int]) -> Batch:
        at, mask = padded_places([min(b, len(order) - 1) for b in begins], counts, device)
        places = order[at]
        return Batch(_taken(batch.x, places), _taken(batch.y, places), mask, batch.n, counts=counts)

    rest = part(
        [f + b for f, b in zip(firsts, num_held_out, strict=True)],
        [n - b for n, b in zip(sizes, num_held_out, strict=True)],
    )
    weight = (batch.n / send(num_held_out, device, batch.n.dtype))[:, None]
    given = Given(rest, send(chunk.keys, device), stream)
    return replace(part(firsts, num_held_out), scale=weight, given=given)


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Examples (S, n, ...) at positions of (S n), (S, m)."""
    return values.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, places.shape)
