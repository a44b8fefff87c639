"""Counts in sentences: 1 round is left, 2 rounds are left."""

from __future__ import annotations


def counted(number: float, word: str, verb: str = "", verb_of_many: str = "") -> str:
    """A whole number with its noun, and the verb that follows.

    Args:
        number: of things.
        word: the noun for one of them, to which others add an s, or es after a hissing sound.
        verb, verb_of_many: after one of them, and after others; empty for none.
    """
    ending = "es" if word.endswith(("s", "x", "ch", "sh")) else "s"
    words = f"{number:.0f} {word}{ending * (number != 1)}"
    return f"{words} {verb if number == 1 else verb_of_many}" if verb else words
