"""A formula's text as tokens, and the limits of what is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: characters of a formula; parentheses in each other; operators of the effects, and of one call; effects in all
MAX_CHARACTERS, MAX_DEPTH, MAX_OPERATORS, MAX_ARITHMETIC, MAX_EFFECTS = 10_000, 20, 250, 50, 500
#: largest exponent, of a column and of a sum of effects; digits of a number
MAX_EXPONENT, MAX_DIGITS = 16, 30
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    | (?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)
    | (?P<name>[^\W\d_][\w.]*)
    | (?P<quoted>`[^`]*`)
    | (?P<text>'[^'"]*'|"[^'"]*")
    | (?P<sign>\*\*|==|!=|<=|>=|[-~+*/:|(){}\[\],=<>^])""",
    re.VERBOSE,
)


class Refused(Exception):
    """What is wrong with a formula."""


@dataclass(frozen=True)
class Token:
    """A word of a formula: its kind (name, number, sign, ...) and text."""

    kind: str
    text: str

    @property
    def shown(self) -> str:
        """The token's text in a message."""
        return repr(self.text) if self.text else "its end"


def sign(text: str) -> Token:
    """One of the signs."""
    return Token("sign", text)


def tokens_of(text: str) -> Iterator[Token]:
    """The tokens of a formula, and one that says "end".

    Raises:
        Refused: for text that holds anything else, or is empty or too long.
    """
    if not text.strip():
        raise Refused("it is empty")
    if len(text) > MAX_CHARACTERS:
        raise Refused(f"it has {len(text):,} characters, more than {MAX_CHARACTERS:,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused("it holds characters that are not text (lone surrogates)") from error
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match.lastgroup == "name" and not text[position].isalpha()):
            hint = "; names that begin so are written between backquotes" if text[position] == "_" else ""
            raise Refused(f"{text[position : position + 20].split()[0]!r} is not understood{hint}")
        kind, position = str(match.lastgroup), match.end()
        if kind in ("name", "quoted", "text") and "__" in match.group():
            raise Refused(f"{match.group()} holds '__', which formulas must not: rename the column")
        if kind == "number" and len(match.group()) > MAX_DIGITS:
            raise Refused(f"it has a number of more than {MAX_DIGITS} digits")
        if kind != "space":
            yield Token(kind, match.group())
    yield Token("end", "")
