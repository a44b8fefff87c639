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


#: characters of a value that a line of an error has at most
MAX_VALUE_CHARACTERS = 80


def short_repr(value: object) -> str:
    """A value in one line: as it is written, or by its type where that is long, as of a table.

    A name that is not known is of the user, and whole however long.
    """
    if isinstance(value, str):
        return repr(value)
    text = repr(value)
    return (
        text
        if len(text) <= MAX_VALUE_CHARACTERS and "\n" not in text and " at 0x" not in text
        else f"a {type(value).__name__}"
    )


def unknown(kind: str, name: object, names: Iterable[str]) -> UserError:
    """The error for a name that is not known, with the list of those that are."""
    return UserError(f"unknown {kind} {short_repr(name)}; known: {', '.join(names)}")
