"""What is put off until somebody asks: what messages of a search say, from which nothing follows before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: of the messages of rounds that wait
WAITING_BYTES = 2**24


class Waiting:
    """Work in its order, done at once when it is asked for.

    Attributes:
        bytes: that it holds.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._put_off: list[Callable[[], Any]] = []

    def room(self, size: int) -> bool:
        """Whether so many bytes more may wait."""
        return self.bytes + size <= WAITING_BYTES

    def add(self, work: Callable[[], Any], size: int = 0) -> None:
        """Appends work of so many bytes."""
        self._put_off.append(work)
        self.bytes += size

    @torch.no_grad()
    def done(self) -> None:
        """Does what waits, and nothing that is added meanwhile."""
        waiting, self._put_off, self.bytes = self._put_off, [], 0
        for work in waiting:
            work()
