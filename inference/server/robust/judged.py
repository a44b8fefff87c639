"""Rules that know by themselves what a single client's message says: of likelihoods, whose sums are searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch import Tensor

from ...messages.singles import Singles
from ...state import State
from .rules import RobustRule


@dataclass(frozen=True)
class Without:
    """What is estimated with each client and without it, beside the others that count.

    Attributes:
        beside: with it, (R, p); not a number where there is no such estimate.
        without: without it, (R, p).
        errors: standard errors of what is estimated with all that count, (p,).
    """

    beside: Tensor
    without: Tensor
    errors: Tensor


@dataclass(frozen=True)
class Judged:
    """What a rule makes of single messages.

    Attributes:
        weights: how much of each message counts under a robust rule, (R,) in [0, 1].
        measure: says :attr:`measured` and :attr:`without`, when they are asked for.
        named: rows that stand out: each with the position of what in :data:`~.standing.WORDS`, and by how much.
    """

    weights: Tensor
    measure: Callable[[], tuple[Tensor, Without | None]]
    named: Sequence[tuple[int, int, float]] = ()

    @cached_property
    def _asked(self) -> tuple[Tensor, Without | None]:
        return self.measure()

    @property
    def measured(self) -> Tensor:
        """(R, 4), :data:`~.measures.MEASURES` and how far a client's own estimate is from what the others expect, in
        standard errors; not a number where nothing is known."""
        return self._asked[0]

    @property
    def without(self) -> Without | None:
        """Estimates, where the round says something of them."""
        return self._asked[1]


@runtime_checkable
class Judging(Protocol):
    """A rule whose messages are parts of one function that is searched, as a log likelihood.

    A robust rule gives each client one weight, which holds until it is lowered: heights of other weights could not be
    compared.
    """

    @property
    def estimated(self) -> Sequence[str]:
        """Names of the numbers of :class:`Without`."""
        ...

    def says(self, old: State) -> bool:
        """Whether messages of a round say anything of single clients.

        Args:
            old: shared values, as broadcast.
        """
        ...

    def judged(
        self, old: State, message: Mapping[str, Tensor], singles: Singles, rule: RobustRule | None, memory: State
    ) -> Judged:
        """Judges the messages of a round.

        Args:
            old: shared values, as broadcast.
            message: {key: (R, *shape)}.
            singles: who they are from, and which count.
            rule: that bounds how many clients may be left out; None where nothing is decided.
            memory: what is kept from round to round, and written into; with a rule alone.
        """
        ...
