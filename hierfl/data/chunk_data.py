"""The training data of the clients that are computed together, standardised once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..devices import send
from .batch import Batch
from .federation import Federation
from .lazy_tensor import LazyTensor
from .padding import buckets, padded_places


class ChunkData:
    """The training data of some clients, standardised once for a whole local phase.

    They lie as buckets need them, padding included, so that a bucket's batch is a view.

    Args:
        federation: whose clients.
        clients: which, largest first.
    """

    def __init__(self, federation: Federation, clients: Sequence[int]) -> None:
        self.federation, self.clients = federation, list(clients)
        self._first: dict[int, int] = {}  # where a client's row begins
        index, self._buckets, offset = [], {}, 0
        sizes = federation.sizes()
        for first, last in buckets([sizes[j] for j in self.clients]):
            rows = self.clients[first:last]
            padded, mask = federation.indices("train").padded(rows)
            self._buckets[tuple(rows)] = (offset, padded.shape, mask)
            self._first |= {j: offset + row * padded.shape[1] for row, j in enumerate(rows)}
            index.append(padded.flatten())
            offset += padded.numel()
        self._index = torch.cat(index) if index else torch.zeros(0, dtype=torch.long, device=federation.device)

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs (rows after rows, *event) and targets."""
        return self.federation.examples(self._index)

    @cached_property
    def weights(self) -> Tensor | None:
        """How many rows each row of :attr:`data` counts for, (rows after rows,); None where each counts once."""
        weights = self.federation.weights
        return None if weights is None else weights[self._index].to(self.federation.dtype)

    def weights_at(self, places: Tensor) -> Tensor | None:
        """The weights of the examples at these places, of any shape; None where each counts one."""
        return None if self.weights is None else self.weights[places]

    @property
    def size(self) -> int:
        """N, how many places there are, padding included."""
        return len(self._index)

    def places(self, clients: Sequence[int]) -> list[int]:
        """The index of each client's first example."""
        return [self._first[j] for j in clients]

    def first(self, clients: Sequence[int]) -> Tensor:
        """The same on the device, (S, 1)."""
        return send(self.places(clients), self.federation.device)[:, None]

    def at(self, places: Tensor, defer: bool = False) -> tuple[Tensor, Tensor]:
        """Inputs and targets at these places (S, n) of :attr:`data`; inputs when they are used, where deferred."""

        def taken(part: Tensor) -> Tensor:
            return part.index_select(0, places.flatten()).unflatten(0, places.shape)

        x, y = self.data
        if not defer:
            return taken(x), taken(y)
        return LazyTensor.deferred(lambda: taken(x), (*places.shape, *x.shape[1:]), x), taken(y)

    def batch(self, clients: Sequence[int]) -> Batch:
        """All examples of these clients, padded to the longest; not to be changed in place."""
        all_sizes, device = self.federation.sizes(), self.federation.device
        sizes = [all_sizes[j] for j in clients]
        n = send([self.federation.amounts[j] for j in clients], device, self.federation.dtype)
        if tuple(clients) in self._buckets:
            offset, shape, mask = self._buckets[tuple(clients)]
            rows = slice(offset, offset + shape.numel())
            x, y = (part[rows].unflatten(0, shape) for part in self.data)
            weights = None if self.weights is None else self.weights[rows].unflatten(0, shape)
            return Batch(x, y, mask, n, weights, sizes)
        places, mask = padded_places(self.places(clients), sizes, device)
        return Batch(*self.at(places), mask, n, self.weights_at(places), sizes)
