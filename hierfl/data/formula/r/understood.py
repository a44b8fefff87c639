"""A formula's tokens as they are written here, of those that R and lme4 write: the formula means the same.

    x^2 in a call, (a + b)^2      x**2, (a + b)**2
    factor(g), as.factor(g)       C(g);  factor(g, levels=c("b", "a")) is C(g, levels=["b", "a"])
    relevel(g, ref="b")           T(g, ref="b")
    TRUE, FALSE                   True, False
    cbind(k, n - k) ~             p(k, n) ~
    cbind(k, m) ~                 p(k, k + 0 + m) ~
    k / n ~                       p(k, n) ~, with the weights n
    (x || g)                      (1 | g) + (0 + x | g)
    (x - 1 | g)                   (0 + x | g)
    x * z - z:x                   x * z - x:z
    bs(x, Boundary.knots=c(a, b)) bs(x, lower_bound=a, upper_bound=b)
    ns(x, knots=c(...))           cr(x, knots=[...]): another basis of the same curves

What has another meaning here, or none, stays, and is refused with the formula that is meant (:mod:`..hints`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..tokens import Token, sign
from .double_bars import without_double_bars
from .minus import without_minus

#: calls that make a category
CATEGORIES = ("factor", "as.factor", "as.character")
_NAMES = ("name", "quoted")
_FLAGS = {"TRUE": "True", "FALSE": "False"}


class Understood(NamedTuple):
    """A formula's tokens.

    Attributes:
        tokens: as they are written here.
        share: of a response ``k / n``, the column n, which has to be the weights; empty for another one.
    """

    tokens: list[Token]
    share: str = ""


def understood(tokens: Sequence[Token]) -> Understood:
    """Tokens as they are written here.

    Args:
        tokens: of a formula, its end among them.

    Raises:
        Refused: for effects left of a double bar that cannot be taken apart, and for a "-" that takes nothing away.
    """
    rewritten = _splines(_relevelled(_categories(_words(tokens))))
    rewritten, share = _response(rewritten)
    return Understood(without_minus(without_double_bars(rewritten)), share)


def _words(tokens: Sequence[Token]) -> list[Token]:
    """Single ones."""
    words = _first_powers([sign("**") if token == sign("^") else token for token in tokens])
    for k, token in enumerate(words[:-1]):
        if token.kind == "name" and token.text in _FLAGS and words[k + 1] != sign("("):
            words[k] = Token("name", _FLAGS[token.text])
    return words


def _first_powers(tokens: list[Token]) -> list[Token]:
    """The tokens without the exponent of ``(x + z)**1``, which formulae has not."""
    first_power = [sign(")"), sign("**"), Token("number", "1")]
    kept, k = list[Token](), 0
    while k < len(tokens):
        kept.append(tokens[k])
        k += 3 if tokens[k : k + 3] == first_power and tokens[k + 3 : k + 4] != [sign("**")] else 1
    return kept


def _is_call(tokens: Sequence[Token], position: int, *names: str) -> bool:
    """Whether one of these functions is called there."""
    return tokens[position].kind == "name" and tokens[position].text in names and tokens[position + 1] == sign("(")


def _categories(tokens: list[Token]) -> list[Token]:
    """``factor(g, c(...))`` has levels at its second position."""
    rewritten = list[Token]()
    for k, token in enumerate(tokens):
        if k < len(tokens) - 1 and _is_call(tokens, k, *CATEGORIES):
            token = Token("name", "C")
        elif k > 3 and _is_call(tokens, k, "c") and _is_call(tokens, k - 4, *CATEGORIES) and tokens[k - 1] == sign(","):
            rewritten += [Token("name", "levels"), sign("=")]
        rewritten.append(token)
    return rewritten


def _relevelled(tokens: list[Token]) -> list[Token]:
    """A plain column with its reference, which may be in ``factor(...)`` again: whatever is in T(...) is a category."""
    rewritten, k = list[Token](), 0
    while k < len(tokens):
        if k < len(tokens) - 1 and _is_call(tokens, k, "relevel"):
            inside = _is_call(tokens, k + 2, "C") and tokens[k + 5 : k + 6] == [sign(")")]
            column = tokens[k + 4] if inside else tokens[k + 2]
            after = k + (6 if inside else 3)
            if column.kind in _NAMES and tokens[after] == sign(","):
                rewritten += [Token("name", "T"), sign("("), column]
                k = after
                continue
        rewritten.append(tokens[k])
        k += 1
    return rewritten


def _splines(tokens: list[Token]) -> list[Token]:
    """Knots that are said, and bounds."""
    rewritten, k = list[Token](), 0
    while k < len(tokens):
        if tokens[k] == Token("name", "Boundary.knots") and (numbers := _two_numbers(tokens, k + 1)):
            low, high = numbers
            bounds = [Token("name", "lower_bound"), sign("="), *low, sign(",")]
            rewritten += [*bounds, Token("name", "upper_bound"), sign("="), *high]
            k += 6 + len(low) + len(high)
            continue
        if k < len(tokens) - 1 and _is_call(tokens, k, "ns"):
            inside = tokens[k : closing(tokens, k + 1)]
            rewritten.append(Token("name", "cr") if Token("name", "knots") in inside else tokens[k])
        else:
            rewritten.append(tokens[k])
        k += 1
    return rewritten


def _two_numbers(tokens: Sequence[Token], position: int) -> tuple[list[Token], list[Token]] | None:
    """The tokens of each number of ``= c(a, b)`` from there on; None for anything else."""
    if list(tokens[position : position + 3]) != [sign("="), Token("name", "c"), sign("(")]:
        return None
    parts = [list[Token]()]
    for token in tokens[position + 3 : closing(tokens, position + 2)]:
        if token == sign(","):
            parts.append([])
        else:
            parts[-1].append(token)
    plain = all(part and part[-1].kind == "number" and part[:-1] in ([], [sign("-")]) for part in parts)
    return (parts[0], parts[1]) if plain and len(parts) == 2 else None


def _response(tokens: list[Token]) -> tuple[list[Token], str]:
    """Successes among trials, and the trials' column where they are a share."""
    end = tokens.index(sign("~")) if sign("~") in tokens else 0
    left, rest = tokens[:end], tokens[end:]
    if len(left) == 3 and left[1] == sign("/") and {left[0].kind, left[2].kind} <= {*_NAMES}:
        return [*_trials(left[:1], left[2:]), *rest], left[2].text.strip("`")
    if not left or not _is_call(left, 0, "cbind") or closing(left, 1) != end - 1:
        return tokens, ""
    commas = [k for k in range(2, end) if left[k] == sign(",") and not _depth(left[2:k])]
    if len(commas) != 1:
        return tokens, ""
    (comma,) = commas
    won, lost = left[2:comma], left[comma + 1 : -1]
    if lost[1:] == [sign("-"), *won] and lost[0].kind in (*_NAMES, "number") and not _is_loose(won):
        return [*_trials(won, lost[:1]), *rest], ""
    # True + True is True, and True + 0 + True is 2.
    both = [*_whole(won), sign("+"), Token("number", "0"), sign("+"), *_whole(lost)]
    return [*_trials(won, both), *rest], ""


def _trials(won: Sequence[Token], trials: Sequence[Token]) -> list[Token]:
    return [Token("name", "p"), sign("("), *won, sign(","), *trials, sign(")")]


def _is_loose(tokens: Sequence[Token]) -> bool:
    """Whether a sign before them would be that of their first part alone: they are a sum or a comparison."""
    signs = ("+", "-", "==", "!=", "<", "<=", ">", ">=")
    return any(
        token.kind == "sign" and token.text in signs and not _depth(tokens[:k]) for k, token in enumerate(tokens)
    )


def _whole(tokens: list[Token]) -> list[Token]:
    """The tokens, in parentheses if signs beside them could take them apart."""
    return [sign("("), *tokens, sign(")")] if _is_loose(tokens) else tokens


def _depth(tokens: Sequence[Token]) -> int:
    """How many parentheses are open at their end."""
    return sum((token == sign("(")) - (token == sign(")")) for token in tokens)


def closing(tokens: Sequence[Token], opening: int) -> int:
    """The place of the parenthesis that closes one; the end's where none does."""
    depth = 0
    for k in range(opening, len(tokens)):
        depth += (tokens[k] == sign("(")) - (tokens[k] == sign(")"))
        if not depth:
            return k
    return len(tokens) - 1
