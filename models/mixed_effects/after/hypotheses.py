"""Linear hypotheses from text: ``x = z = 0``, ``arm[b] - arm[c]``, ``2 * x + z = 1, w = 0``.

    text      hypothesis {(, | ;) hypothesis}
    hypothesis  sum {= sum}          all sums are equal; one alone is zero
    sum       product {(+ | -) product}
    product   factor {(* | /) factor}, at most one of them with coefficients, which divides nothing
    factor    a number, a coefficient's name, a name between backquotes, (sum), or one of them behind a sign

A name is a coefficient's as the summary has it, the longest that fits. One that is a sum of others, too, such as
``x - z`` beside x and z, is written between backquotes, and the sum with parentheses, ``(x) - (z)``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from hierfl.errors import UserError

#: characters of a text, parentheses and signs inside each other
MAX_CHARACTERS, MAX_DEPTH = 2000, 30
NUMBER = re.compile(r"\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?")


def hypotheses(text: str, names: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """What each hypothesis says, contrasts (q, r) and what they are, (q,).

    Args:
        text: the hypotheses.
        names: of coefficients, r of them.

    Raises:
        UserError: for text that is none, names no coefficient, or says nothing of any.
    """
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        raise UserError("hypotheses are text, such as 'x = z = 0'")
    parser, sentences, rows = _Parser(text, names), list[str](), list[np.ndarray]()
    while True:
        first = parser.position
        sums = [parser.sum(0)]
        while parser.takes("="):
            sums.append(parser.sum(0))
        words = parser.between(first)
        for row_sum in sums[:-1] or sums:
            rows.append(row_sum - sums[-1] if len(sums) > 1 else row_sum)
            sentences.append(words)
        if not (parser.takes(",") or parser.takes(";")):
            break
    if not parser.done:
        raise parser.wrong()
    all_rows = np.array(rows)
    for words, row in zip(sentences, all_rows, strict=True):
        if not row[:-1].any():
            raise UserError(f"the hypothesis {words!r} is of no coefficient: known: {', '.join(names)}")
        if not np.isfinite(row).all():
            raise UserError(f"the hypothesis {words!r} has a number that is too large")
    return sentences, all_rows[:, :-1], -all_rows[:, -1]


class _Parser:
    """A text and a place in it; sums are rows of coefficients with the constant behind them, (r + 1,)."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.text, self.names, self.position = text, list(names), 0
        self.asks = True  # whether a name that is a sum of others, too, is refused
        self._skip()

    def _reads_without(self, name: str) -> bool:
        """Whether a coefficient's name is a number or a sum of other coefficients."""
        other = _Parser(name, [other_name for other_name in self.names if other_name != name])
        other.asks = False
        try:
            other.sum(0)
        except UserError:
            return False
        return other.done

    def _skip(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    @property
    def done(self) -> bool:
        return self.position >= len(self.text)

    def between(self, first: int) -> str:
        return self.text[first : self.position].strip()

    def takes(self, sign: str) -> bool:
        """Whether a sign comes next, which is then passed."""
        if not self.text.startswith(sign, self.position):
            return False
        self.position += len(sign)
        self._skip()
        return True

    def wrong(self) -> UserError:
        rest = self.text[self.position :][:40]
        where = f"at {rest!r}" if rest else "at its end"
        return UserError(
            f"the hypotheses {self.text[:200]!r} cannot be read {where}; coefficients: {', '.join(self.names)}"
        )

    def sum(self, depth: int) -> np.ndarray:
        total = self.product(depth)
        while True:
            if self.takes("+"):
                total = total + self.product(depth)
            elif self.takes("-"):
                total = total - self.product(depth)
            else:
                return total

    def product(self, depth: int) -> np.ndarray:
        value = self.factor(depth)
        while True:
            by = self.takes("*")
            if not by and not self.takes("/"):
                return value
            other = self.factor(depth)
            if other[:-1].any() and (not by or value[:-1].any()):
                raise UserError(f"the hypotheses {self.text[:200]!r} are not linear in the coefficients")
            if not by and not other[-1]:
                raise UserError(f"the hypotheses {self.text[:200]!r} divide by zero")
            if other[:-1].any():
                value, other = other, value
            value = value * other[-1] if by else value / other[-1]

    def factor(self, depth: int) -> np.ndarray:
        value = np.zeros(len(self.names) + 1)
        if depth > MAX_DEPTH:
            raise self.wrong()
        for sign in ("+", "-"):
            if self.takes(sign):
                return self.factor(depth + 1) * (1.0 if sign == "+" else -1.0)
        if self.takes("("):
            value = self.sum(depth + 1)
            if not self.takes(")"):
                raise self.wrong()
            return value
        if (name := self._name()) is not None:
            value[self.names.index(name)] = 1.0
        elif number := NUMBER.match(self.text, self.position):
            value[-1] = float(number[0])
            self.position = number.end()
        else:
            raise self.wrong()
        self._skip()
        return value

    def _name(self) -> str | None:
        """The longest coefficient's name that is here, with backquotes or without."""
        for name in sorted(self.names, key=len, reverse=True):
            for written in (f"`{name}`", name):
                end = self.position + len(written)
                # The name x is no part of x2, of x: or of x[b].
                if self.text.startswith(written, self.position) and not re.match(r"[\w\[:.]", self.text[end : end + 1]):
                    if written == name and self.asks and self._reads_without(name):
                        raise UserError(
                            f"{name!r} is a coefficient, and can be read without it, too: write it between backquotes,"
                            f" `{name}`, or others in parentheses, as in (x) - (z)"
                        )
                    self.position = end
                    return name
        return None
