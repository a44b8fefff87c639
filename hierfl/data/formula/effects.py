"""The effects of a formula: sums, interactions, powers and random terms."""

from __future__ import annotations

from math import comb

from .arguments import ArgumentParser
from .parsed import Formula, RandomTerm
from .smooth import DEFAULT_SPLINES, MAX_SPLINES, MIN_SPLINES, MOST_EFFECTS, MOST_SMOOTHS, Smooth
from .tokens import MAX_EFFECTS, MAX_EXPONENT, MAX_OPERATORS, Refused, Token


class FormulaParser(ArgumentParser):
    """Recursive descent into effects; the methods return how many terms they make at most."""

    def formula(self) -> Formula:
        response = None
        sides = sum(token == Token("sign", "~") for token in self.tokens)
        if sides > 1:
            raise Refused("it has more than one '~'")
        if sides:
            self.level_of_response()
            self.response()
            response, self.columns = frozenset(self.columns), set()
        self.sum()
        if self.at("|"):
            raise Refused("random effects are written in parentheses, as in (1 | site)")
        if self.current.kind != "end":
            raise Refused(f"{self.current.shown} is not expected there")
        safe = self._text(0, len(self.tokens) - 1)
        selections = tuple(dict.fromkeys(self.selections))
        return Formula(
            self.text, safe, response, frozenset(self.columns), tuple(self.random), selections, self.orders, self.share,
            tuple(self.smooths),
        )  # fmt: skip

    def level_of_response(self) -> None:
        """``y['yes']`` is ``I(y == 'yes')``: the tokens of one become those of the other."""
        column, sign, level, end = (*self.tokens[:4], *[self.tokens[-1]] * 4)[:4]
        if column.kind not in ("name", "quoted") or sign != Token("sign", "["):
            return
        if level.kind not in ("text", "number", "name") or end != Token("sign", "]"):
            raise Refused(f"a level of the response is written {column.text}['LEVEL']")
        if level.text in ("True", "False"):
            raise Refused(f"a column of True and False is a response as it stands: write {column.text} ~")
        literal = level if level.kind != "name" else Token("text", repr(level.text))
        equal = [Token("sign", "("), column, Token("sign", "=="), literal, Token("sign", ")")]
        self.tokens[:4] = [Token("name", "I"), *equal]

    def response(self) -> None:
        if self.current.kind in ("end", "number", "text") or self.at("~", "(", "+", "-"):
            raise Refused(f"its response is {self.current.shown}, not a column or one function of columns")
        self.term()
        if not self.take("~"):
            raise Refused(f"its response is one column, or one function of columns: not more, as {self.current.shown}")

    def count(self, terms: int) -> int:
        if terms > MAX_EFFECTS:
            raise Refused(f"it makes more than {MAX_EFFECTS} effects")
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            raise Refused(f"it has more than {MAX_OPERATORS} operators")
        return terms

    def sum(self) -> int:
        terms = self.product()
        while self.take("+", "-"):
            terms = self.count(terms + self.product())
        return terms

    def product(self) -> int:
        terms = self.interaction()
        while sign := self.take("*", "/"):
            more = self.interaction()
            terms = self.count(terms + terms * more + (more if sign == "*" else 0))
        return terms

    def interaction(self) -> int:
        terms = self.power()
        while self.take(":"):
            terms = self.count(terms * self.power())
        return terms

    def power(self) -> int:
        start, terms = self.position, self.signed()
        number, before = self.tokens[start], self.tokens[max(0, start - 1)]
        factor = self.at("*", "/", ":") or before in [Token("sign", sign) for sign in "*/:"]
        if number.kind == "number" and self.position - start == 1 and factor:
            raise Refused(f"{number.text} is no factor of an effect; arithmetic with a column is written in I(...)")
        if not self.take("**"):
            return terms
        if terms == 1:
            base = "".join(token.text for token in self.tokens[start : self.position - 1])
            raise Refused(f"a power of one effect is the effect itself; of numbers it is I({base}**2)")
        exponent = self.current
        self.position += 1
        if exponent.kind != "number" or not exponent.text.isdigit() or not 1 <= int(exponent.text) <= MAX_EXPONENT:
            raise Refused(f"'**' takes a whole number from 1 to {MAX_EXPONENT}, not {exponent.shown}")
        if self.at("**"):
            raise Refused("a power of a power is not understood")
        return self.count(sum(comb(terms, k) for k in range(1, int(exponent.text) + 1)))

    def signed(self) -> int:
        if sign := self.take("+", "-"):
            if sign == "-" and self.current.text not in ("0", "1"):
                raise Refused(f"a '-' at the beginning takes 1 (no intercept), not {self.current.shown}")
            self.count(1)
        return self.term()

    def term(self) -> int:
        token = self.current
        if self.take("("):
            return self.group()
        if self.take("{"):
            self.arithmetic = 0
            with self.inside():
                self.value()
                self.expect("}", "at the end of {...}")
            return 1
        if token.kind == "number":
            if token.text not in ("0", "1"):
                raise Refused(f"{token.text} is no effect: 1 is the intercept, 0 is none")
        elif token.kind == "text":
            raise Refused(f"{token.text} is text; a column with an odd name is written between backquotes")
        elif token == Token("name", "s") and self.tokens[self.position + 1] == Token("sign", "("):
            self.smooth()
            return 1
        elif token.kind == "name" and self.tokens[self.position + 1] == Token("sign", "("):
            self.arithmetic = 0
            self.call()
            return 1
        else:
            self.columns.add(self.column())
            return 1
        self.position += 1
        return 1

    def smooth(self) -> None:
        """``s(x, k=10, lower=0, upper=1)``: formulae gets x alone."""
        first = self.position
        self.position += 2
        column, numbers = self.column(), dict[str, float]()
        kept = self.position - 1
        while self.take(","):
            key, k = self.current.text, self.position
            if key not in ("k", "df", "lower", "upper") or self.tokens[k + 1] != Token("sign", "="):
                raise Refused(f"a smooth term is s({column}, k=10), or s({column}, k=10, lower=0, upper=1)")
            self.position += 2
            negative, number = bool(self.take("-")), self.current
            key = "k" if key == "df" else key
            if number.kind != "number" or key in numbers:
                raise Refused(f"s: {key} is a number, said once, not {number.shown}")
            numbers[key] = -float(number.text) if negative else float(number.text)
            self.position += 1
        self.expect(")", "at the end of s(...)")
        before = self.tokens[first - 1] if first else Token("sign", "~")
        if self.depth or before.text not in ("~", "+") or self.at("*", "/", ":", "**", "|"):
            raise Refused(f"s({column}) is a term by itself, joined by +")
        if any(earlier.column == column for earlier in self.smooths):
            raise Refused(f"s({column}) is there twice")
        size, limits = numbers.pop("k", DEFAULT_SPLINES), (numbers.get("lower"), numbers.get("upper"))
        if size != int(size) or not MIN_SPLINES <= size <= MAX_SPLINES:
            raise Refused(f"s({column}) has k={size:g}, which is a whole number from {MIN_SPLINES} to {MAX_SPLINES}")
        if numbers and (None in limits or not numbers["lower"] < numbers["upper"]):
            raise Refused(f"the knots of s({column}) have two limits: lower=0, upper=1")
        self.smooths.append(Smooth(column, int(size), (numbers["lower"], numbers["upper"]) if numbers else None))
        effects = sum(len(earlier.groups) for earlier in self.smooths)
        if len(self.smooths) > MOST_SMOOTHS or effects > MOST_EFFECTS:
            raise Refused(
                f"its {len(self.smooths)} smooth terms have {effects} effects: {MOST_SMOOTHS} terms and {MOST_EFFECTS} "
                "effects of all together are understood"
            )
        self.columns.add(column)
        self.cut |= set(range(first, self.position)) - {kept}

    def group(self) -> int:
        first, random = self.position - 1, False
        with self.inside():
            terms = self.sum()
            if random := bool(self.take("|")):
                path, nested = self.path()
            self.expect(")", "at the end of a parenthesis")
        if random:
            effects = self._text(first, self.position)
            self.random += [RandomTerm(effects, path[:n]) for n in range(1 if nested else len(path), len(path) + 1)]
        return terms

    def path(self) -> tuple[tuple[str, ...], bool]:
        """Columns right of a bar, a, a:b or a/b; and whether each has effects of its own."""
        start, names, signs = self.position, list[str](), set[str]()
        while True:
            named = self.current.kind in ("name", "quoted")
            after = self.tokens[self.position + 1] if named else self.current  # nothing follows the end
            if named and after.kind == "end":
                raise Refused("a parenthesis is not closed: ')' is missing at the end")
            if not named or after.text not in (")", "/", ":"):
                raise Refused(f"random terms belong to a column of the table, not to {self._until(')', start)}")
            names.append(self.column())
            sign = self.take("/", ":")
            if not sign:
                break
            signs.add(sign)
        if len(signs) > 1 or len(set(names)) < len(names):
            raise Refused(f"groups inside others are written a/b or a:b, not {self._until(')', start)}")
        self.cut |= set(range(start + 1, self.position))  # which groups they are is not formulae's to know
        return tuple(names), "/" in signs

    def _until(self, sign: str, start: int) -> str:
        """Tokens from there to a sign, as a message shows them."""
        rest = [token.text for token in self.tokens[start:]]
        return repr(" ".join(rest[: rest.index(sign)] if sign in rest else rest)[:60])
