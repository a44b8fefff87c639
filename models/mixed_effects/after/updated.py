"""A formula that is changed, as R's ``update`` does: ``~ . - x`` is the same without x."""

from __future__ import annotations

import re

from hierfl.errors import UserError

#: the sign for all that was on a side
SAME_SIDE = "."
_HAS_SAME = re.compile(r"(?<![\w.)`])\.(?![\w.])")
_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")


def updated(formula: str, update: str) -> str:
    """The formula with each "." replaced by what it had on that side.

    Args:
        formula: of a fit.
        update: such as ``~ . - x``, ``~ . + z - (1 | site)``, or ``log(y) ~ .``.

    Raises:
        UserError: for text that is no change, takes away a random term that is not there, or has "." inside of a term.
    """
    formula, mark, own = formula.partition(";")
    if not isinstance(update, str) or update.count("~") != 1 or formula.count("~") != 1:
        raise UserError(f"a formula is changed as in '~ . - x', not by {update!r}")
    (left, right), (new_left, new_right) = ((side.strip() for side in text.split("~")) for text in (formula, update))
    signed_terms = _terms(new_right)
    if inside := [term for _, term in signed_terms if term != SAME_SIDE and _HAS_SAME.search(_QUOTED.sub("", term))]:
        raise UserError(f"in a change '.' is a term of its own, as in '~ . + b + x:b', and not part of {inside[0]!r}")
    random = {_squeezed(term) for sign, term in signed_terms if sign == "-" and _is_random(term)}
    kept = [(sign, term) for sign, term in _terms(right) if _squeezed(term) not in random]
    if strange := random - {_squeezed(term) for _, term in _terms(right)}:
        raise UserError(f"the formula {formula!r} has no term {sorted(strange)[0]!r} to leave out")
    parts = list[str]()
    for sign, term in signed_terms:
        if term == SAME_SIDE:
            parts += [part for group in kept for part in group]
        elif not (sign == "-" and _is_random(term)):
            parts += [sign, term]
    text = " ".join(parts).removeprefix("+ ")
    response = left if new_left in ("", SAME_SIDE) else new_left
    return f"{response} ~ {text}{mark}{own}"


def _is_random(term: str) -> bool:
    return term.startswith("(") and "|" in term


def _squeezed(term: str) -> str:
    return "".join(term.split())


def _terms(side: str) -> list[tuple[str, str]]:
    """Signs and terms of a sum, as they are written; parentheses, brackets and quotes stay whole."""
    terms, depth, quote, sign, start = list[tuple[str, str]](), 0, "", "+", 0
    for k, letter in enumerate(side):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "`'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter in "+-" and not depth:
            if term := side[start:k].strip():
                terms.append((sign, term))
            sign, start = letter, k + 1
    if term := side[start:].strip():
        terms.append((sign, term))
    return terms
