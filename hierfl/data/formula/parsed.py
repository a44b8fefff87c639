"""A formula that has passed the gate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Formula:
    """A formula that has passed.

    Attributes:
        text: as it was written.
        safe: the tokens that were understood, for formulae.
        response: columns of the response; None without one.
        predictors: columns on the right, but for those that are right of a bar alone.
        groups: the column right of each bar.
        random: each random term, as formulae has it.
    """

    text: str
    safe: str
    response: frozenset[str] | None
    predictors: frozenset[str]
    groups: tuple[str, ...]
    random: tuple[str, ...] = ()

    @property
    def columns(self) -> frozenset[str]:
        """All of them."""
        return (self.response or frozenset()) | self.predictors | frozenset(self.groups)
