"""The gate before formulae: reads a formula's text, and refuses whatever is not on the lists below.

formulae looks names up in Python namespaces and calls what it finds there, so that a formula is a program. A formula
comes from a command line, a config.toml or a colleague: it is data. So it is tokenised and parsed here first:

    formula   [response ~] sum                                        response: a column, or one call
    sum       effects joined by + and -, with * / : and (a + b)**2    effects: 0, 1, a column, a call, {arithmetic}
    random    (sum | column)
    call      a name of :data:`hierfl.data.formula.calls.CALLS` with the arguments that it takes there
    arguments columns, numbers, + - * / **, one comparison

Columns are names, or anything between backquotes. A name before a parenthesis is always a function and never a column;
any other name is always a column, whatever functions are called. What formulae gets are the tokens that were
understood, and a namespace that holds these functions and nothing else: no frame of the caller's.

This is the only module that imports formulae.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb, prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from .calls import CALLS, CONTRAST, CONTRASTS, FLAG, INTEGER, LEVEL, NUMBER, NUMPY, TRANSFORMS, VALUE, WHOLE, Arguments

if TYPE_CHECKING:
    import pandas as pd

#: characters of a formula; parentheses in each other; operators of the effects, and of one call; effects in all
LENGTH, DEPTH, OPERATORS, ARITHMETIC, EFFECTS = 10_000, 20, 250, 50, 500
#: largest exponent, of a column and of a sum of effects;
#: digits of a number
EXPONENT, DIGITS = 16, 30
#: numbers in the fixed effects' matrix, 2 GB of them
CELLS = 250_000_000

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    | (?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)
    | (?P<name>[^\W\d_][\w.]*)
    | (?P<quoted>`[^`]*`)
    | (?P<text>'[^'"]*'|"[^'"]*")
    | (?P<sign>\*\*|==|!=|<=|>=|[-~+*/:|(){},=<>])""",
    re.VERBOSE,
)
_LITERALS = ("True", "False", "None")
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")


@dataclass(frozen=True)
class Formula:
    """A formula that has passed.

    Attributes:
        text: as it was written.
        safe: the tokens that were understood, for formulae.
        response: columns of the response; None without one.
        predictors: columns on the right, but for those that only stand right of a bar.
        groups: the column right of each bar.
    """

    text: str
    safe: str
    response: frozenset[str] | None
    predictors: frozenset[str]
    groups: tuple[str, ...]

    @property
    def columns(self) -> frozenset[str]:
        """All of them."""
        return (self.response or frozenset()) | self.predictors | frozenset(self.groups)


class _Refused(Exception):
    """What is wrong with a formula."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str

    @property
    def shown(self) -> str:
        return repr(self.text) if self.text else "its end"


def parse(text: object) -> Formula:
    """Reads a formula, and looks at nothing else: no table, no namespace.

    Raises:
        UserError: for text that is no formula, is too large, or names a function that is not on the list.
    """
    if not isinstance(text, str):
        raise UserError(f"a formula is text, such as 'y ~ 1 + x + (1 + x | site)', not {text!r}")
    try:
        return _Parser(text).formula()
    except _Refused as refused:
        raise UserError(f"the formula {shorten(text)!r} cannot be read: {refused}") from refused


def shorten(text: str) -> str:
    """A formula as messages show it."""
    return text if len(text) <= 300 else f"{text[:297]}..."


def _tokens(text: str) -> Iterator[_Token]:
    if not text.strip():
        raise _Refused("it is empty")
    if len(text) > LENGTH:
        raise _Refused(f"it has {len(text):,} characters, more than {LENGTH:,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Refused("it holds characters that are not text (lone surrogates)") from error
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or (found.lastgroup == "name" and not text[place].isalpha()):
            hint = "; names that begin so are written between backquotes" if text[place] == "_" else ""
            raise _Refused(f"{text[place : place + 20].split()[0]!r} is not understood{hint}")
        kind, place = str(found.lastgroup), found.end()
        if kind in ("name", "quoted", "text") and "__" in found.group():
            raise _Refused(f"{found.group()} holds '__', which formulas must not: rename the column")
        if kind == "number" and len(found.group()) > DIGITS:
            raise _Refused(f"it has a number of more than {DIGITS} digits")
        if kind != "space":
            yield _Token(kind, found.group())
    yield _Token("end", "")


class _Parser:
    """Recursive descent. Effects return how many terms they make at most, arguments the columns that they name."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, list(_tokens(text))
        self.place = self.depth = self.operators = self.arithmetic = 0
        self.found: set[str] = set()  # columns of the side that is read
        self.groups: list[str] = []

    # -- tokens -------------------------------------------------------------------------------------------------

    @property
    def here(self) -> _Token:
        return self.tokens[self.place]

    def at(self, *signs: str) -> bool:
        return self.here.kind == "sign" and self.here.text in signs

    def take(self, *signs: str) -> str:
        """The sign that is next, if it is one of these; else nothing, and nothing is taken."""
        if not self.at(*signs):
            return ""
        self.place += 1
        return self.tokens[self.place - 1].text

    def expect(self, sign: str, where: str) -> None:
        if not self.take(sign):
            raise _Refused(f"{sign!r} is missing {where}, before {self.here.shown}")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """One level of parentheses deeper."""
        self.depth += 1
        if self.depth > DEPTH:
            raise _Refused(f"its parentheses are more than {DEPTH} deep")
        yield
        self.depth -= 1

    # -- effects ------------------------------------------------------------------------------------------------

    def formula(self) -> Formula:
        response = None
        sides = sum(token == _Token("sign", "~") for token in self.tokens)
        if sides > 1:
            raise _Refused("it has more than one '~'")
        if sides:
            self.response()
            response, self.found = frozenset(self.found), set()
        self.sum()
        if self.at("|"):
            raise _Refused("random effects stand in parentheses, as in (1 | site)")
        if self.here.kind != "end":
            raise _Refused(f"{self.here.shown} is not expected there")
        safe = " ".join(token.text for token in self.tokens[:-1])
        return Formula(self.text, safe, response, frozenset(self.found), tuple(self.groups))

    def response(self) -> None:
        if self.here.kind in ("end", "number", "text") or self.at("~", "(", "+", "-"):
            raise _Refused(f"its response is {self.here.shown}, not a column or one function of columns")
        self.term()
        if not self.take("~"):
            raise _Refused(f"its response is one column, or one function of columns: not more, as {self.here.shown}")

    def count(self, terms: int) -> int:
        if terms > EFFECTS:
            raise _Refused(f"it makes more than {EFFECTS} effects")
        self.operators += 1
        if self.operators > OPERATORS:
            raise _Refused(f"it has more than {OPERATORS} operators")
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
        start, terms = self.place, self.signed()
        if not self.take("**"):
            return terms
        if terms == 1:
            base = "".join(token.text for token in self.tokens[start : self.place - 1])
            raise _Refused(f"a power of one effect is the effect itself; of numbers it is I({base}**2)")
        exponent = self.here
        self.place += 1
        if exponent.kind != "number" or not exponent.text.isdigit() or not 1 <= int(exponent.text) <= EXPONENT:
            raise _Refused(f"'**' takes a whole number from 1 to {EXPONENT}, not {exponent.shown}")
        if self.at("**"):
            raise _Refused("a power of a power is not understood")
        return self.count(sum(comb(terms, k) for k in range(1, int(exponent.text) + 1)))

    def signed(self) -> int:
        if sign := self.take("+", "-"):
            if sign == "-" and self.here.text not in ("0", "1"):
                raise _Refused(f"a '-' at the beginning takes 1 (no intercept), not {self.here.shown}")
            self.count(1)
        return self.term()

    def term(self) -> int:
        token = self.here
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
                raise _Refused(f"{token.text} is no effect: 1 is the intercept, 0 is none")
        elif token.kind == "text":
            raise _Refused(f"{token.text} is text; a column with an odd name is written between backquotes")
        elif token.kind == "name" and self.tokens[self.place + 1] == _Token("sign", "("):
            self.arithmetic = 0
            self.call()
            return 1
        else:
            self.found.add(self.column())
            return 1
        self.place += 1
        return 1

    def group(self) -> int:
        with self.inside():
            terms = self.sum()
            if self.take("|"):
                if self.at("|"):
                    raise _Refused(
                        "'||' is not understood; for no correlations write one | and say covariance=diagonal"
                    )
                start = self.place
                if self.here.kind in ("name", "quoted") and self.tokens[start + 1] == _Token("sign", ")"):
                    self.groups.append(self.column())
                else:
                    raise _Refused(f"random terms belong to a column of the table, not to {self._until(')', start)}")
            self.expect(")", "at the end of a parenthesis")
        return terms

    def _until(self, sign: str, start: int) -> str:
        """Tokens from there to a sign, as a message shows them."""
        rest = [token.text for token in self.tokens[start:]]
        return repr(" ".join(rest[: rest.index(sign)] if sign in rest else rest)[:60])

    def column(self) -> str:
        """The name of a column, as the table has it."""
        token = self.here
        if token.kind not in ("name", "quoted") or token.text in _LITERALS:
            raise _Refused(f"a column or a function is expected, not {token.shown}")
        self.place += 1
        if self.at("("):
            raise _Refused(f"{token.text} is no function")
        if token.kind == "name":
            return token.text
        if not token.text.strip("`").strip():
            raise _Refused(f"a column cannot be called {token.text}")
        return token.text[1:-1]

    # -- calls and their arguments ------------------------------------------------------------------------------

    def call(self) -> bool:
        """A function of the list with arguments that it takes; whether a column is among them."""
        name = self.here.text
        if name not in CALLS:
            raise _Refused(f"unknown function {name!r}; known: {', '.join((*TRANSFORMS, *NUMPY))}")
        takes, given = CALLS[name], list[str]()
        self.place += 2
        columns = False
        with self.inside():
            while not self.at(")"):
                if given:
                    self.expect(",", f"between the arguments of {name}")
                columns |= self.argument(name, takes, given)
            self.expect(")", f"at the end of {name}(...)")
        if lacking := [key for key in list(takes.places)[: takes.least] if key not in given]:
            what = (
                f"{takes.least} argument{'s' * (takes.least > 1)}" if not takes.named else f"an argument {lacking[0]!r}"
            )
            raise _Refused(f"{name} needs {what}")
        return columns

    def argument(self, name: str, takes: Arguments, given: list[str]) -> bool:
        """One argument, of the kind that belongs there."""
        key, kinds = self.here.text, {**takes.places, **takes.others}
        if self.here.kind == "name" and self.tokens[self.place + 1] == _Token("sign", "="):
            if not takes.named or key not in kinds:
                raise _Refused(f"{name} takes no argument {key!r}")
            self.place += 2
        elif len(given) < len(takes.places):
            key = list(takes.places)[len(given)]
            if given[-1:] and given[-1] != list(takes.places)[len(given) - 1]:
                raise _Refused(f"{name}: an argument without a name follows one with a name")
        else:
            raise _Refused(f"{name} takes {len(takes.places)} argument{'s' * (len(takes.places) > 1)} by place")
        if key in given:
            raise _Refused(f"{name} gets its argument {key!r} twice")
        given.append(key)
        if kinds[key] == VALUE:
            return self.value()
        self.literal(f"{name}: {key}", kinds[key])
        return False

    def literal(self, what: str, kind: str) -> None:
        """A number, a flag, a level or a contrast."""
        negative = kind in (NUMBER, LEVEL) and bool(self.take("-"))
        token = self.here
        self.place += 1
        whole = token.kind == "number" and token.text.isdigit()
        if token.kind == "number" and kind in (NUMBER, LEVEL):
            return
        if whole and kind in WHOLE and WHOLE[kind][0] <= int(token.text) <= WHOLE[kind][1]:
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
            **{of: f"a whole number from {least} to {most}" for of, (least, most) in WHOLE.items()},
            LEVEL: "a level ('text' or a number)", NUMBER: "a number", FLAG: FLAG,
        }  # fmt: skip
        raise _Refused(f"{what} is {wanted[kind]}, not {token.shown}")

    def value(self) -> bool:
        """Arithmetic with at most one comparison; whether a column is in it."""
        left = self.side()
        if not self.take(*_COMPARISONS):
            return left
        right = self.side()
        if self.at(*_COMPARISONS):
            raise _Refused("a comparison of a comparison is not understood")
        return left | right

    def side(self) -> bool:
        """What may be compared: a text, or a sum."""
        compared = self.tokens[self.place + 1].text in _COMPARISONS or self.tokens[self.place - 1].text in _COMPARISONS
        if self.here.kind == "text" and compared:
            self.place += 1
            return False
        columns = self.factors()
        while self.take("+", "-"):
            self.step()
            columns |= self.factors()
        return columns

    def step(self) -> None:
        self.arithmetic += 1
        if self.arithmetic > ARITHMETIC:
            raise _Refused(f"a function's arguments have more than {ARITHMETIC} operators")

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
            raise _Refused("a sign before a power is read in two ways: use parentheses")
        if not columns:
            raise _Refused("a power of a number is a number: write that")
        self.take("-")
        token = self.here
        self.place += 1
        if token.kind != "number" or float(token.text) > EXPONENT:
            raise _Refused(f"an exponent is a number up to {EXPONENT}, not {token.shown}")
        if self.at("**"):
            raise _Refused("a power of a power is read in two ways: use parentheses")
        return columns

    def atom(self) -> bool:
        token = self.here
        if token.kind == "number":
            self.place += 1
            return False
        if self.take("("):
            with self.inside():
                columns = self.value()
                self.expect(")", "at the end of a parenthesis")
            return columns
        if token.kind == "name" and self.tokens[self.place + 1] == _Token("sign", "("):
            self.step()
            return self.call()
        self.found.add(self.column())
        return True


# -- formulae ----------------------------------------------------------------------------------------------------------


def namespace() -> dict[str, Any]:
    """What a formula can name, beside columns and formulae's own transforms: NumPy's functions of the list."""
    functions = {name: getattr(np, name) for name in NUMPY}
    return {**functions, "np": SimpleNamespace(**functions)}


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Lets formulae and NumPy evaluate without a word: what comes out is checked, and faults are raised.

    formulae prints on standard output and logs before it raises.
    """
    log = logging.getLogger("formulae")
    disabled, log.disabled = log.disabled, True
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = disabled


def evaluate(formula: Formula, df: pd.DataFrame) -> Any:
    """formulae's design matrices of a table, with one block of random columns.

    formulae makes a block of columns for each level of a grouping factor, rows x levels numbers in memory. A row has
    zeros in all blocks but its own client's, whose columns are those of the term's left side. So the factor is replaced
    by a column that has one level: what is on the left is evaluated and encoded as before, once.

    Raises:
        UserError: with what formulae says, where the two do not fit.
    """
    from formulae import model_description
    from formulae.environment import Environment
    from formulae.matrices import DesignMatrices
    from formulae.terms.terms import Term
    from formulae.terms.variable import Variable

    one = "one client"
    while one in df.columns:
        one += "_"
    try:
        with quietly():
            model = model_description(formula.safe)
            _check_width(model, df)
            for term in model.group_terms:
                term.factor = Term(Variable(one))
            return DesignMatrices(model, df.assign(**{one: 0}), Environment([namespace()]))
    except UserError:
        raise
    except Exception as fault:  # (its parser, resolver and transforms raise what they like)
        raise misfit(formula, fault) from fault


def _check_width(model: Any, df: pd.DataFrame) -> None:
    """Refuses effects whose columns would fill the memory: interactions of categories have products of their levels."""

    def columns(component: Any) -> int:
        split = re.search(r"\b[CST]\(", component.name) is not None  # (numbers made categories)
        names = [name for name in component.var_names if name in df]
        levels = [df[name].nunique() for name in names if split or df[name].dtype.kind not in "biuf"]
        smooth = re.match(r"(bs|cr|cc|tp|poly)\(", component.name) is not None
        return max([WHOLE[INTEGER][1] if smooth else 1, *levels])

    whole = 0
    for term in model.terms:
        effect = getattr(term, "expr", term)
        found = prod(columns(component) for component in getattr(effect, "components", ()))
        whole += found
        if whole > CELLS // len(df):
            alone = found > CELLS // len(df)
            which, many = (f"the effect {effect.name!r} has", found) if alone else ("its effects have", whole)
            raise UserError(f"{which} up to {many:,} columns, too many for {len(df):,} rows")


def misfit(formula: Formula, fault: Exception) -> UserError:
    """The error for a formula and a table that do not fit."""
    said = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
    return UserError(f"the formula {shorten(formula.text)!r} does not fit the table: {said[:300]}")
