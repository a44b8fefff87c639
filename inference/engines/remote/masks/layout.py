"""Messages as one row of words: masked counts first, then the numbers of each tensor, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ....messages.fixed_point import FixedPoint
from ....state import State, StateForm
from .parts import COUNTS, Contribution
from .words import Words, packed, unpacked


@dataclass(frozen=True)
class Layout:
    """The layout of a message as a row of integers.

    Attributes:
        form: of the tensors.
        sites: on the roster: over no more it is summed, so that sums of groups add up.
    """

    form: StateForm
    sites: int

    @property
    def size(self) -> int:
        """Words of a row."""
        return self.words.size

    @cached_property
    def words(self) -> Words:
        """How rows are added up: each number is one integer of some words."""
        sizes = (
            (torch.Size(shape).numel(), FixedPoint.for_dtype(dtype).words)
            for _, (shape, dtype) in sorted(self.form.items())
        )
        return Words(((len(COUNTS), 1), *sizes))

    def fits(self, values: Mapping[str, torch.Tensor]) -> bool:
        """Whether all numbers are finite, and in the range of a sum over so many sites."""
        return all(FixedPoint.for_dtype(dtype).fits(values[name], self.sites) for name, (_, dtype) in self.form.items())

    def row(self, part: Contribution) -> np.ndarray:
        """What a site adds; zeros, and a refusal counted, where its numbers do not fit.

        Returns:
            (size,), uint64.
        """
        fits = self.fits(part.values) if part.values else True
        refused = part.refused or not fits
        counted = part.reported and not refused, part.diverged, refused
        if refused or not part.values:
            return np.concatenate([np.array(counted), np.zeros(self.size - len(COUNTS), np.uint64)]).astype(np.uint64)
        rows = [
            packed(point := FixedPoint.for_dtype(self.form[name][1]), point.encode(part.values[name], self.sites))
            for name in sorted(self.form)
        ]
        return np.concatenate([np.array(counted, np.uint64), *rows])

    def read(self, total: np.ndarray) -> tuple[State, dict[str, int]]:
        """The sums and the counts of a row that is the sum of rows.

        Args:
            total: (size,), uint64.
        """
        at, sums = len(COUNTS), State()
        for name in sorted(self.form):
            shape, dtype = self.form[name]
            point = FixedPoint.for_dtype(dtype)
            size = point.words * torch.Size(shape).numel()
            digits = unpacked(point, total[at : at + size]).reshape(point.limbs, *shape)
            sums[name], at = point.decode(digits, self.sites), at + size
        counts = map(int, total[: len(COUNTS)].view(np.int64))
        return {name: sums[name] for name in self.form}, dict(zip(COUNTS, counts, strict=True))
