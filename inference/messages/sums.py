"""What a round brings the server: the sum of the clients' messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..state import State


@dataclass(frozen=True)
class Sums:
    """Messages that have been added up. Sums add up in any order, on any machine.

    Counts are exact. Totals differ by rounding with the order, as floating-point sums do.

    Attributes:
        reported: how many messages are in it, (), int64.
        diverged: how many clients' own computation has failed, whether they were to report or not, (), int64.
        totals: {group of shared values: {key: (*shape)}}; empty where no message arrived.
        bytes: what was sent, messages that were rejected for their numbers included.
    """

    reported: Tensor
    diverged: Tensor
    totals: Mapping[str, State] = field(default_factory=dict)
    bytes: int = 0

    @classmethod
    def nothing(cls, device: torch.device) -> Sums:
        """The sum of no messages."""
        none = torch.zeros((), dtype=torch.int64, device=device)
        return cls(none, none)

    def __add__(self, other: Sums) -> Sums:
        """The sum of both.

        Raises:
            ValueError: for sums of messages of different forms.
        """
        totals = {group: dict(total) for group, total in self.totals.items()}
        for group, more in other.totals.items():
            total = totals.setdefault(group, {})
            if total and total.keys() != more.keys():
                raise ValueError(f"a sum of {group!r} has {sorted(more)}, the other {sorted(total)}")
            for key, value in more.items():
                total[key] = total[key] + value if key in total else value
        return Sums(self.reported + other.reported, self.diverged + other.diverged, totals, self.bytes + other.bytes)
