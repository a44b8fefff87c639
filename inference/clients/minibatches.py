"""Minibatches of all rows of a plate, step by step, and the features that are held fixed beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.nn.functional import Network
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.rng import ClientNoise, permutations

from .chunk import ClientChunk


@dataclass(frozen=True)
class MinibatchPlan:
    """The minibatches of all rows, in order, epoch after epoch.

    Attributes:
        position: (steps, S, B), places in a row's own data, -1 for padding; on the host.
        steps: how many each row has; no row more than the one before it.
    """

    position: Tensor
    steps: Sequence[int]

    def of(self, row: int) -> Tensor:
        """A row's own, (steps, B)."""
        return self.position[: self.steps[row], row]


def plan(chunk: ClientChunk, phase: object, size: int, epochs: int, most: int | None = None) -> MinibatchPlan:
    """Minibatches of so many passes through each row's data, every pass in an order of its own.

    Args:
        chunk: the rows.
        phase: keys the orders.
        size: B, examples in a minibatch; an epoch's last one has what is left.
        epochs: passes; as many as it takes where ``most`` is given.
        most: steps of every row instead.
    """
    sizes = chunk.sizes
    each = [-(-n // size) for n in sizes]  # steps of a pass
    passes = [epochs if most is None else -(-most // steps) for steps in each]
    orders = permutations(chunk.keys, sizes, passes, *chunk.stream(phase), "epochs")
    steps = [k * steps if most is None else most for k, steps in zip(passes, each, strict=True)]
    position = torch.full((max(steps), len(sizes), size), -1)
    if not len(orders):
        return MinibatchPlan(position, steps)
    # where each number of the orders, one after the other, belongs
    n = torch.tensor(sizes)
    read = n * torch.tensor(passes)
    row = torch.repeat_interleave(torch.arange(len(sizes)), read)
    number = torch.arange(len(row)) - torch.repeat_interleave(read.cumsum(0) - read, read)
    number, place = number // n[row], number % n[row]
    step, slot = number * torch.tensor(each)[row] + place // size, place % size
    held = step < len(position)
    position[step[held], row[held], slot[held]] = orders[held]
    return MinibatchPlan(position, steps)


def minibatches(chunk: ClientChunk, plan: MinibatchPlan, frozen: FrozenFeatures, noise: ClientNoise) -> Iterator[Batch]:
    """The minibatches of all rows, step by step; rows that have finished are left out.

    Args:
        chunk: the rows.
        plan: their places.
        frozen: gets what is shown.
        noise: is moved to the step.
    """
    federation = chunk.federation
    position = plan.position
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
    for first, last, active in active_spans(plan.steps):
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
