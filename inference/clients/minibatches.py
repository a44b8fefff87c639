"""Minibatches of all rows of a plate, step by step, and the features that are held fixed beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.padding import buckets
from hierfl.devices import send
from hierfl.nn.functional import Network
from hierfl.ppl.frozen_features import FrozenFeatures
from hierfl.rng import permutations

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

    def for_row(self, row: int) -> Tensor:
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
    steps_of_pass = [-(-n // size) for n in sizes]  # steps of a pass
    passes = [epochs if most is None else -(-most // steps) for steps in steps_of_pass]
    orders = permutations(chunk.keys, sizes, passes, *chunk.stream(phase), "epochs")
    steps = [k * steps if most is None else most for k, steps in zip(passes, steps_of_pass, strict=True)]
    position = torch.full((max(steps), len(sizes), size), -1)
    if not len(orders):
        return MinibatchPlan(position, steps)
    # where each number of the orders, one after the other, belongs
    n = torch.tensor(sizes)
    read = n * torch.tensor(passes)
    row = torch.repeat_interleave(torch.arange(len(sizes)), read)
    number = torch.arange(len(row)) - torch.repeat_interleave(read.cumsum(0) - read, read)
    number, slot = number // n[row], number % n[row]
    step, slot = number * torch.tensor(steps_of_pass)[row] + slot // size, slot % size
    within = step < len(position)
    position[step[within], row[within], slot[within]] = orders[within]
    return MinibatchPlan(position, steps)


class MinibatchPlaces(NamedTuple):
    """Which examples the rows' minibatches of one step consist of.

    Attributes:
        places: (S, b), where they lie among the plate's.
        mask: (S, b), False for padding; None where no row is padded.
        n: (S,), how many training examples each row has in all.
        weight: (S, 1), n_j / b_j; (S, b), times each row's weight, where rows have weights.
        counts: (S,), b_j; on the host.
    """

    places: Tensor
    mask: Tensor | None
    n: Tensor
    weight: Tensor
    counts: Tensor


def regrouped(values: Sequence[Tensor | None]) -> list[MinibatchPlaces]:
    """Minibatches of which all fields stand one after the other."""
    fields = len(MinibatchPlaces._fields)
    return [MinibatchPlaces(*values[k : k + fields]) for k in range(0, len(values), fields)]  # type: ignore[arg-type]


class Minibatches:
    """The minibatches of all rows, step by step; rows that have finished are left out.

    Args:
        chunk: the rows.
        plan: their positions.
        frozen: gets what is shown.
    """

    def __init__(self, chunk: ClientChunk, plan: MinibatchPlan, frozen: FrozenFeatures) -> None:
        self.examples, self.frozen = chunk.examples, frozen
        device = chunk.federation.device
        present = plan.position >= 0
        self._counts = present.sum(-1)
        # A step is as wide as its fullest row, and needs no mask where all rows are full. The last batch of an epoch
        # is short, and a small client has no other.
        widths = self._counts.max(1).values
        self._complete = ((self._counts == widths[:, None]) | (self._counts == 0)).all(1).tolist()
        self._widths = widths.tolist()
        self._active = [active for first, last, active in active_spans(plan.steps) for _ in range(first, last)]
        self._mask, self._n = send(present, device), chunk.n
        # n_j / b_j; who has finished is never asked.
        rows = self._n if self.examples.weights is None else send(chunk.sizes, device, self._n.dtype)
        self._weight = (rows / send(self._counts, device))[..., None]
        self._places = self.examples.first(chunk.clients) + send(plan.position.clamp_min(0), device)
        self._defer = any(frozen.moving.isdisjoint(network.output_names) for network in chunk.method.network.networks)

    def at(self, step: int) -> MinibatchPlaces:
        """Those of one step."""
        active, width = self._active[step], self._widths[step]
        places, weight = self._places[step, :active, :width], self._weight[step, :active]
        if (own := self.examples.weights_at(places)) is not None:
            weight = weight * own
        return MinibatchPlaces(
            places,
            None if self._complete[step] else self._mask[step, :active, :width],
            self._n[:active],
            weight,
            self._counts[step, :active],
        )

    def batch(self, at: MinibatchPlaces) -> Batch:
        """The examples at these places."""
        x, y = self.examples.at(at.places, self._defer)
        self.frozen.show(x, at.places)
        return Batch(x, y, at.mask, at.n, at.weight, at.counts)


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
        features = network.apply(network.parameters_from(part.view), part.batch().x)
        if kept is None:
            kept = features.new_zeros((chunk.examples.size, *features.shape[2:]))
        for row, slot, n in zip(features, firsts[first:last], sizes[first:last], strict=True):
            kept[slot : slot + n] = row[:n]
    assert kept is not None
    return kept


def active_spans(steps: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of steps during which the same rows take part: first step, last + 1, how many rows (the first ones)."""
    first = 0
    for last in sorted(set(steps)):
        yield first, last, sum(s >= last for s in steps)
        first = last
