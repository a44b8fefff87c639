"""The calls of a formula and their arguments: arithmetic, comparisons and literals."""

from __future__ import annotations

from collections.abc import Sequence

from .calls import (
    CALLS,
    CONTRAST,
    CONTRASTS,
    FLAG,
    LEVEL,
    LEVELS,
    NUMBER,
    NUMBERS,
    NUMPY,
    SELECTIONS,
    TRANSFORMS,
    VALUE,
    WHOLE_NUMBER_RANGES,
    Arguments,
)
from .cursor import Cursor
from .parsed import Level
from .tokens import MAX_ARITHMETIC, MAX_EXPONENT, Refused, Token, sign

_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")


class ArgumentParser(Cursor):
    """Recursive descent into calls; the methods return whether a column was among what they read."""

    def call(self) -> bool:
        """A function of the list with arguments that it takes; whether a column is among them."""
        name = self.current.text
        if name not in CALLS:
            raise Refused(f"unknown function {name!r}; known: {', '.join((*TRANSFORMS, *NUMPY))}")
        takes, given, texts = CALLS[name], list[str](), list[str]()
        self.position += 2
        columns = False
        with self.inside():
            while not self.at(")"):
                if given:
                    self.expect(",", f"between the arguments of {name}")
                start = self.position
                columns |= self.argument(name, takes, given)
                texts.append(self._text(start, self.position))
            self.expect(")", f"at the end of {name}(...)")
        if lacking := [key for key in list(takes.places)[: takes.least] if key not in given]:
            what = (
                f"{takes.least} argument{'s' * (takes.least > 1)}" if not takes.named else f"an argument {lacking[0]!r}"
            )
            raise Refused(f"{name} needs {what}")
        # A condition that is a comparison is among them already.
        if columns and texts[0] not in self.selections:
            self.selections += [pattern.format(*texts) for pattern in SELECTIONS.get(name.removeprefix("np."), ())]
        return columns

    def argument(self, name: str, takes: Arguments, given: list[str]) -> bool:
        """One argument, of the kind that belongs there."""
        key, kinds = self.current.text, {**takes.places, **takes.others}
        if self.current.kind == "name" and self.tokens[self.position + 1] == Token("sign", "="):
            if not takes.named or key not in kinds:
                raise Refused(f"{name} takes no argument {key!r}")
            self.position += 2
        elif len(given) < len(takes.places):
            key = list(takes.places)[len(given)]
            if given[-1:] and given[-1] != list(takes.places)[len(given) - 1]:
                raise Refused(f"{name}: an argument without a name follows one with a name")
        else:
            raise Refused(f"{name} takes {len(takes.places)} argument{'s' * (len(takes.places) > 1)} by place")
        if key in given:
            raise Refused(f"{name} gets its argument {key!r} twice")
        given.append(key)
        if kinds[key] == VALUE:
            return self.value()
        if kinds[key] in (LEVELS, NUMBERS):
            self.listed(f"{name}: {key}", kinds[key])
        else:
            self.literal(f"{name}: {key}", kinds[key])
        return False

    def listed(self, what: str, kind: str) -> None:
        """A list, [...] or c(...). Levels are for the table, and formulae does not get them."""
        first = self.position
        if self.current == Token("name", "c") and self.tokens[first + 1] == sign("("):
            self.position += 1
            self.cut.add(first)
        closing = {"[": "]", "(": ")"}.get(self.take("[", "("), "")
        if not closing:
            raise Refused(f"{what} is a list, as in {what.partition(': ')[2]}=[1, 2], not {self.current.shown}")
        # Formulae has no lists, but a function of the list's name.
        self.tokens[self.position - 1] = sign("c(")
        levels = list[Level]()
        while not levels or not self.at(closing):
            if levels:
                self.expect(",", f"in the list of {what}")
            self.step()
            start = self.position
            self.literal(what, LEVEL if kind == LEVELS else NUMBER)
            levels.append(_level(self.tokens[start : self.position]))
        self.tokens[self.position] = sign(")")
        self.position += 1
        if len(set(map(repr, levels))) < len(levels):
            raise Refused(f"{what} lists an entry twice")
        if kind == LEVELS:
            self.order(what, first, tuple(levels))

    def order(self, what: str, first: int, levels: tuple[Level, ...]) -> None:
        """Keeps the levels of the column of the call ``C(column, ..., levels=[...])``, whose list begins there."""
        start = max(k for k in range(first) if self.tokens[k] == Token("name", "C"))
        column = self.tokens[start + 2]
        if column.kind not in ("name", "quoted") or self.tokens[start + 3] != sign(","):
            raise Refused(f"{what} are those of a plain column: C(column, levels=['b', 'a'])")
        name = column.text.strip("`")
        if self.orders.setdefault(name, levels) != levels:
            raise Refused(f"the levels of {name!r} are listed twice, and differ")
        self.cut |= set(range(first - 3, self.position))  # ", levels =" before them, too

    def literal(self, what: str, kind: str) -> None:
        """A number, a flag, a level or a contrast."""
        negative = kind in (NUMBER, LEVEL) and bool(self.take("-"))
        token = self.current
        self.position += 1
        whole = token.kind == "number" and token.text.isdigit()
        if token.kind == "number" and kind in (NUMBER, LEVEL):
            return
        if (
            whole
            and kind in WHOLE_NUMBER_RANGES
            and WHOLE_NUMBER_RANGES[kind][0] <= int(token.text) <= WHOLE_NUMBER_RANGES[kind][1]
        ):
            return
        if not negative and token.text in ("True", "False") and kind in (FLAG, LEVEL):
            return
        if not negative and token.kind == "text" and kind == LEVEL:
            return
        if kind == CONTRAST and token.text in CONTRASTS:
            if self.take("("):
                if not self.at(")"):
                    self.literal(f"{token.text}(...)", LEVEL)
                self.expect(")", f"at the end of {token.text}(...)")
            return
        wanted = {
            CONTRAST: f"a contrast ({' or '.join(CONTRASTS)})",
            **{kind: f"a whole number from {low} to {high}" for kind, (low, high) in WHOLE_NUMBER_RANGES.items()},
            LEVEL: "a level ('text' or a number)", NUMBER: "a number", FLAG: FLAG,
        }  # fmt: skip
        raise Refused(f"{what} is {wanted[kind]}, not {token.shown}")

    def value(self) -> bool:
        """Arithmetic with at most one comparison; whether a column is in it."""
        start, left = self.position, self.side()
        if not self.take(*_COMPARISONS):
            return left
        right = self.side()
        if self.at(*_COMPARISONS):
            raise Refused("a comparison of a comparison is not understood")
        if left | right:
            self.selections.append(self._text(start, self.position))
        return left | right

    def side(self) -> bool:
        """What may be compared: a text, or a sum."""
        before, after = self.tokens[self.position - 1], self.tokens[self.position + 1]
        compared = after.text in _COMPARISONS or before.text in _COMPARISONS
        if self.current.kind == "text" and compared:
            self.position += 1
            return False
        columns = self.factors()
        while self.take("+", "-"):
            self.step()
            columns |= self.factors()
        return columns

    def step(self) -> None:
        self.arithmetic += 1
        if self.arithmetic > MAX_ARITHMETIC:
            raise Refused(f"a function's arguments have more than {MAX_ARITHMETIC} operators")

    def factors(self) -> bool:
        columns = self.raised()
        while self.take("*", "/"):
            self.step()
            columns |= self.raised()
        return columns

    def raised(self) -> bool:
        sign = self.take("+", "-")
        if sign:
            self.step()
        columns = self.atom()
        if not self.take("**"):
            return columns
        self.step()
        if sign:
            raise Refused("a sign before a power is read in two ways: use parentheses")
        if not columns:
            raise Refused("a power of a number is a number: write that")
        self.take("-")
        token = self.current
        self.position += 1
        if token.kind != "number" or float(token.text) > MAX_EXPONENT:
            raise Refused(f"an exponent is a number up to {MAX_EXPONENT}, not {token.shown}")
        if self.at("**"):
            raise Refused("a power of a power is read in two ways: use parentheses")
        return columns

    def atom(self) -> bool:
        token = self.current
        if token.kind == "number":
            self.position += 1
            return False
        if self.take("("):
            with self.inside():
                columns = self.value()
                self.expect(")", "at the end of a parenthesis")
            return columns
        if token.kind == "name" and self.tokens[self.position + 1] == Token("sign", "("):
            self.step()
            return self.call()
        self.columns.add(self.column())
        return True


def _level(tokens: Sequence[Token]) -> Level:
    """What a literal says."""
    *signs, token = tokens
    if token.kind == "text":
        return token.text[1:-1]
    if token.kind == "name":
        return token.text == "True"
    number = float(token.text) if "." in token.text else int(token.text)
    return -number if signs else number
