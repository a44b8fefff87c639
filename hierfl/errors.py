"""The one error that means "you can mend this": bad input, reported in one line."""

from __future__ import annotations

from collections.abc import Iterable


class UserError(ValueError):
    """Input that cannot be used. The command line prints its message as one line and exits with code 2."""

    #: the exit code
    status = 2


class RankLost(UserError):
    """Another process of the same fit has ended before it."""

    status = 3


class NotFinite(UserError):
    """A fitted model says nothing finite, so that nothing can be drawn from it."""


class NoAttribute(UserError, AttributeError):
    """An attribute that is not there, with the way to what it would be."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that is not known, with the list of those that are."""
    return UserError(f"unknown {kind} {name!r}; known: {', '.join(known)}")
