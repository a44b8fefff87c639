"""Minibatches of all rows of a plate, step by step, and the features that are held fixed beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.nn.functional import Network
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.rng import ClientNoise, permutation

from .chunk import ClientChunk


def plan(chunk: ClientChunk, row: int, phase: object, size: int, epochs: int) -> Tensor:
    """A row's minibatches in order, epoch after epoch: (steps, size), places in its own data, -1 for padding."""
    n = chunk.sizes[row]
    orders = [permutation(n, *chunk.key(phase, row), "epoch", epoch) for epoch in range(epochs)]
    return torch.cat([torch.nn.functional.pad(order, (0, -n % size), value=-1).view(-1, size) for order in orders])


def minibatches(
    chunk: ClientChunk, plans: Sequence[Tensor], frozen: FrozenFeatures, noise: ClientNoise
) -> Iterator[Batch]:
    """The minibatches of all rows, step by step; rows that have finished are left out.

    Args:
        chunk: the rows.
        plans: each row's steps, see :func:`plan`; no row has more than the one before it.
        frozen: gets what is shown.
        noise: is moved to the step.
    """
    federation = chunk.federation
    position = pad_sequence(list(plans), padding_value=-1)  # (steps, S, B)
    present = position >= 0
    counts = present.sum(-1)
    # a step is as wide as its fullest row (the last batch of an epoch is short, and a small client has no other),
    # and needs no mask where all rows are full
    widths = counts.max(1).values
    complete = ((counts == widths[:, None]) | (counts == 0)).all(1).tolist()
    position, mask = position.clamp_min(0).to(federation.device), present.to(federation.device)
    networks = chunk.method.network.networks
    defer = any(frozen.moving.isdisjoint(network.names) for network in networks)
    n = chunk.n
    weight = (n / counts.to(federation.device))[..., None]  # n_j / b_j; who has finished is never asked
    places = chunk.examples.first(chunk.clients) + position
    for first, last, active in active_spans([len(steps) for steps in plans]):
        sizes = n[:active]
        for step, width in zip(range(first, last), widths[first:last].tolist(), strict=True):
            x, y = chunk.examples.at(places[step, :active, :width], defer)
            here = None if complete[step] else mask[step, :active, :width]
            frozen.show(x, places[step, :active, :width])
            noise.counts = counts[step]
            noise.at(step, active)
            yield Batch(x, y, here, sizes, weight[step, :active], counts[step, :active])


def constant_features(chunk: ClientChunk, network: Network) -> Tensor:
    """A network's output on the rows' examples, where these lie among the plate's: (N, features).

    Args:
        chunk: the rows; the network's weights are fixed.
        network: which.
    """
    sizes, firsts = chunk.sizes, chunk.examples.places(chunk.clients)
    kept: Tensor | None = None
    for first, last in buckets(sizes):
        part = chunk.part(first, last)
        found = network.apply(network.parameters_from(part.view), part.batch().x)
        if kept is None:
            kept = found.new_zeros((chunk.examples.size, *found.shape[2:]))
        for row, place, n in zip(found, firsts[first:last], sizes[first:last], strict=True):
            kept[place : place + n] = row[:n]
    assert kept is not None
    return kept


def active_spans(steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps during which the same rows take part: first step, last + 1, how many rows (the first ones)."""
    first = 0
    for last in sorted(set(steps)):
        yield first, last, sum(s >= last for s in steps)
        first = last
