"""Noise that lies in the same places at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.rng import ClientNoise


class _Asked(NamedTuple):
    """What was asked for."""

    turn: int
    site: str
    width: int | None
    event_shape: torch.Size
    counts: Sequence[int] | Tensor | None


@dataclass
class _Place:
    """How far a step has come: where it began, what it asks for next, whether all that it asks for is known."""

    first: int = 0
    next: int = 0
    begun: bool = False
    complete: bool = False


class HeldNoise(ClientNoise):
    """Noise that lies in the same places at every step, for operations that are recorded.

    Every step must ask for the same in the same order, by turns counted from where :meth:`begin` was. Where it asks
    for it beside numbers of examples, these too lie in one place, and are in it before a step begins.

    Args:
        source: where the numbers come from.
    """

    def __init__(self, source: ClientNoise) -> None:
        super().__init__(source.keys, source.stream, source.particles, counts=source.counts, dtype=source.dtype)
        self.source = source
        self._held: list[tuple[_Asked, Tensor]] = []
        self._at = _Place()  # the same one in what narrow() gives

    def begin(self, step: int, active: int) -> None:
        """Brings the numbers of this step of the source, at which the first rows take part, to their positions."""
        self._at.complete = self._at.begun
        self._at.begun, self._at.first, self._at.next = True, step, 0
        self.at(0, active)
        self.source.at(step, active)
        for asked, numbers in self._held:
            numbers.copy_(self._made(asked))

    def normal(self, site: str, width: int | None, event_shape: torch.Size) -> Tensor:
        """See :class:`~hierfl.rng.ClientNoise`."""
        number, asked = self._at.next, _Asked(self.step, site, width, event_shape, self.counts)
        self._at.next += 1
        if number == len(self._held) and not self._at.complete:
            self._held.append((asked, self._made(asked).clone()))
        if number >= len(self._held) or self._held[number][0][:4] != asked[:4]:
            raise RuntimeError(f"a step that is recorded asks for other noise than the one before it, at site {site!r}")
        return self._held[number][1]

    def _made(self, asked: _Asked) -> Tensor:
        step = self._at.first + asked.turn
        if self.source.step != step:
            self.source.at(step)
        self.source.counts = asked.counts
        return self.source.normal(asked.site, asked.width, asked.event_shape)
