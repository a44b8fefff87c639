"""How long the rounds that are left take, by the median of those that were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median

from hierfl.plurals import counted

#: from so many seconds on, the time of day is said, too
LONG_SECONDS = 3600.0


@dataclass
class Pace:
    """Seconds of rounds; those that are evaluated take longer, and are counted apart.

    Attributes:
        evaluates: whether a round, by its number, is evaluated.
        early: whether the method may end before its rounds are used up.
    """

    evaluates: Callable[[int], bool] = lambda number: False
    early: bool = False
    _plain: list[float] = field(default_factory=list)
    _evaluated: list[float] = field(default_factory=list)

    def add(self, number: int, seconds: float) -> None:
        """One more round has ended."""
        (self._evaluated if self.evaluates(number) else self._plain).append(seconds)

    def seconds_left(self, done: int, total: int) -> float | None:
        """Seconds of the rounds from ``done`` + 1 to ``total``; None before the first round has ended."""
        if not self._plain and not self._evaluated:
            return None
        plain = median(self._plain or self._evaluated)
        evaluated = median(self._evaluated or self._plain)
        many = sum(self.evaluates(number) for number in range(done + 1, total + 1))
        return many * evaluated + (total - done - many) * plain

    def words(self, done: int, total: int, now: datetime | None = None) -> str:
        """The time at which a fit ends, in words; empty where it is unknown or has passed.

        Args:
            done, total: rounds.
            now: the time of day; None for this machine's.
        """
        left = self.seconds_left(done, total)
        if left is None or done >= total:
            return ""
        at = f" (at {(now or datetime.now()) + timedelta(seconds=left):%H:%M})" if left >= LONG_SECONDS else ""
        if self.early:  # its last round is not known, and later rounds of some methods are longer
            return f"up to {counted(total - done, 'more round')}, {in_words(left)} at this pace{at}"
        return f"ends in about {in_words(left)}{at}"


def in_words(seconds: float) -> str:
    """A duration: "40 s", "12 min", "3.5 h", "2.1 days"."""
    for unit, size in (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(seconds, 0.0):.3g} s"
