"""A cursor over the tokens of a formula."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .parsed import Level, RandomTerm
from .r.understood import understood
from .smooth import Smooth
from .tokens import MAX_DEPTH, Refused, Token, tokens_of

_LITERALS = ("True", "False", "None")


class Cursor:
    """The tokens of a formula, the position in them, and what was counted and found on the way."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens, self.share = understood(list(tokens_of(text)))
        self.position = self.depth = self.operators = self.arithmetic = 0
        self.columns: set[str] = set()  # columns of the side that is read
        self.random: list[RandomTerm] = []
        self.cut: set[int] = set()  # positions of tokens that formulae does not get
        self.selections: list[str] = []  # conditions on rows, as formulae reads them
        self.smooths: list[Smooth] = []
        self.orders: dict[str, tuple[Level, ...]] = {}  # of categories whose levels are listed

    @property
    def current(self) -> Token:
        return self.tokens[self.position]

    def at(self, *signs: str) -> bool:
        return self.current.kind == "sign" and self.current.text in signs

    def take(self, *signs: str) -> str:
        """The sign that is next, if it is one of these; else nothing, and nothing is taken."""
        if not self.at(*signs):
            return ""
        self.position += 1
        return self.tokens[self.position - 1].text

    def expect(self, sign: str, where: str) -> None:
        if not self.take(sign):
            raise Refused(f"{sign!r} is missing {where}, before {self.current.shown}")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """One level of parentheses deeper."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Refused(f"its parentheses are more than {MAX_DEPTH} deep")
        yield
        self.depth -= 1

    def column(self) -> str:
        """The name of a column, as the table has it."""
        token = self.current
        if token.kind not in ("name", "quoted") or token.text in _LITERALS:
            raise Refused(f"a column or a function is expected, not {token.shown}")
        self.position += 1
        if self.at("("):
            raise Refused(f"{token.text} is no function")
        if token.kind == "name":
            return token.text
        if not token.text.strip("`").strip():
            raise Refused(f"a column cannot be called {token.text}")
        return token.text[1:-1]

    def _text(self, first: int, last: int) -> str:
        """Tokens as formulae gets them."""
        return " ".join(self.tokens[k].text for k in range(first, last) if k not in self.cut)
