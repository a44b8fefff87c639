"""Ragged index sets as one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

import torch
from torch import Tensor

from .padding import padded_places


class IndexSets(Sequence[Tensor]):
    """One index set for each client, one after the other in a single tensor.

    A set that several clients have (a common test set) is held once.

    Args:
        sets: int64, (n_j,) each.
    """

    def __init__(self, sets: Iterable[Tensor]) -> None:
        places: dict[int, int] = {}  # where a set begins, by the tensor's identity
        parts: list[Tensor] = []
        self.sizes: list[int] = []
        self.firsts: list[int] = []
        position = 0
        for index in sets:
            n = len(index)
            if id(index) not in places:
                places[id(index)] = position
                parts.append(index)  # which keeps it, and so its identity
                position += n
            self.sizes.append(n)
            self.firsts.append(places[id(index)])
        self.flat = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, row: int) -> Tensor: ...
    @overload
    def __getitem__(self, row: slice) -> IndexSets: ...
    def __getitem__(self, row: int | slice) -> Tensor | IndexSets:
        if isinstance(row, slice):
            return self.select(range(len(self))[row])
        first = self.firsts[row]
        return self.flat[first : first + self.sizes[row]]

    def select(self, rows: Sequence[int]) -> IndexSets:
        """Some clients' sets, in the order given."""
        selected = IndexSets(())
        selected.flat = self.flat
        selected.sizes, selected.firsts = [self.sizes[j] for j in rows], [self.firsts[j] for j in rows]
        return selected

    def to(self, device: torch.device | str) -> IndexSets:
        """The same on another device."""
        moved = self.select(range(len(self)))
        moved.flat = self.flat.to(device)
        return moved

    def padded(self, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Some clients' sets as one tensor (S, n), and its mask (None where nothing is padded); n is at least 1.

        A row is padded with its own first index: what is masked is still computed, and no other client's data belong
        there. An empty one has index 0.
        """
        firsts, sizes = [self.firsts[j] for j in rows], [self.sizes[j] for j in rows]
        places, mask = padded_places(firsts, sizes, self.flat.device)
        if min(sizes, default=1):
            return self.flat[places], mask
        assert mask is not None
        flat = self.flat if len(self.flat) else self.flat.new_zeros(1)
        return flat[places.clamp(max=len(flat) - 1)] * mask.any(1, keepdim=True), mask
