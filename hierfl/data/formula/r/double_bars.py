"""Random effects without correlations: ``(1 + x || g)`` is ``(1 | g) + (0 + x | g)``, as lme4 takes it apart.

Each effect has a term of its own, interactions too. A category stays one term: its levels are correlated with each
other, as in lme4, and not with anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ..tokens import MAX_EFFECTS, MAX_EXPONENT, Refused, Token, sign

#: the parts of an interaction, each a column or a call
Effect = tuple[tuple[Token, ...], ...]
_HINT = "the effects left of '||' are taken apart: write each as a term of its own, as in (1 | g) + (0 + x | g)"


def without_double_bars(tokens: Sequence[Token]) -> list[Token]:
    """Tokens of a formula with each ``(... || g)`` taken apart.

    Raises:
        Refused: for effects that cannot be.
    """
    found, opened, k = list(tokens), list[int](), 0
    while k < len(found):
        if found[k] == sign("("):
            opened.append(k)
        elif found[k] == sign(")") and opened:
            opened.pop()
        elif (
            found[k : k + 2] == [sign("|")] * 2 and opened and not (opened[-1] and found[opened[-1] - 1].kind == "name")
        ):
            first = opened.pop()
            end = next((i for i in range(k, len(found)) if found[i] == sign(")")), len(found) - 1)
            new = _apart(found[first + 1 : k], found[k + 2 : end])
            found[first : end + 1] = new
            k = first + len(new) - 1
        k += 1
    return found


def without_minus_one(tokens: Sequence[Token]) -> list[Token]:
    """Tokens of a formula with each ``(x - 1 | g)`` as (0 + x | g): among random effects formulae has no minus."""
    found, opened, k = list(tokens), list[int](), 0
    while k < len(found):
        if found[k] == sign("("):
            opened.append(k)
        elif found[k] == sign(")") and opened:
            opened.pop()
        elif found[k] == sign("|") and opened:
            first = opened[-1] + 1
            cut = [i for i in range(first, k - 1) if found[i] == sign("-") and found[i + 1] == Token("number", "1")]
            if cut and found[k - 1].kind != "sign":
                left = [token for i, token in enumerate(found[first:k], first) if i not in cut and i - 1 not in cut]
                plus = [] if left[:1] in ([], [sign("+")]) else [sign("+")]
                new = [Token("number", "0"), *plus, *left]
                found[first:k], k = new, first + len(new)
        k += 1
    return found


def _apart(effects: Sequence[Token], path: Sequence[Token]) -> list[Token]:
    """A term for each effect."""
    intercept, terms = _Effects(effects).read()
    sides = [[Token("number", "1")]] if intercept else []
    for parts in terms:
        joined = [token for part in parts for token in (sign(":"), *part)][1:]
        sides.append([Token("number", "0"), sign("+"), *joined])
    if not sides:
        raise Refused("left of '||' there is no effect")
    whole = [token for side in sides for token in (sign("+"), sign("("), *side, sign("|"), *path, sign(")"))]
    return whole[1:]


class _Effects:
    """Effects as R expands them, in their order."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.place = [*tokens, Token("end", "")], 0

    def read(self) -> tuple[bool, list[Effect]]:
        """Whether there is an intercept, and the effects."""
        intercept, found, minus = True, list[Effect](), False
        while True:
            here, after = self.tokens[self.place], self.tokens[min(self.place + 1, len(self.tokens) - 1)]
            if here.text in ("0", "1") and (after.kind == "end" or after in (sign("+"), sign("-"))):
                self.place += 1
                intercept = (here.text == "1") != minus
            elif not (minus and not found and here.kind == "end"):
                more = self._product()
                found = [one for one in found if one not in more] if minus else _joined(found, more)
            if self.tokens[self.place].kind == "end":
                return intercept, found
            minus = self.tokens[self.place] == sign("-")
            if not self._take("+", "-"):
                raise Refused(_HINT)

    def _take(self, *signs: str) -> str:
        here = self.tokens[self.place]
        if here.kind != "sign" or here.text not in signs:
            return ""
        self.place += 1
        return here.text

    def _sum(self) -> list[Effect]:
        found = self._product()
        while self._take("+"):
            found = _joined(found, self._product())
        return found

    def _product(self) -> list[Effect]:
        found = self._interaction()
        while kind := self._take("*", "/"):
            more = self._interaction()
            whole = [tuple(part for one in found for part in one)] if kind == "/" else found
            found = _joined(found, [*(more if kind == "*" else []), *_crossed(whole, more)])
        return found

    def _interaction(self) -> list[Effect]:
        found = self._power()
        while self._take(":"):
            found = _crossed(found, self._power())
        return found

    def _power(self) -> list[Effect]:
        found = self._part()
        if not self._take("**"):
            return found
        exponent = self.tokens[self.place]
        self.place += 1
        if not exponent.text.isdigit() or not 1 <= int(exponent.text) <= MAX_EXPONENT or len(found) < 2:
            raise Refused(_HINT)
        whole = list[Effect]()
        for size in range(1, int(exponent.text) + 1):
            for chosen in combinations(found, size):
                whole = _joined(whole, [tuple(dict.fromkeys(part for one in chosen for part in one))])
        return whole

    def _part(self) -> list[Effect]:
        if self._take("("):
            found = self._sum()
            if not self._take(")"):
                raise Refused(_HINT)
            return found
        first = self.place
        if self.tokens[first].kind not in ("name", "quoted"):
            raise Refused(_HINT)
        self.place += 1
        if self.tokens[self.place] == sign("("):
            depth = 0
            while True:
                depth += (self.tokens[self.place] == sign("(")) - (self.tokens[self.place] == sign(")"))
                self.place += 1
                if not depth:
                    break
                if self.tokens[self.place].kind == "end":
                    raise Refused(_HINT)
        return [(tuple(self.tokens[first : self.place]),)]


def _crossed(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """Their interactions."""
    return _joined([], [tuple(dict.fromkeys((*one, *other))) for one in some for other in others])


def _joined(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """Each once; the parts of an interaction have no order."""
    found = list(some)
    for one in others:
        if frozenset(one) not in map(frozenset, found):
            found.append(one)
    if len(found) > MAX_EFFECTS:
        raise Refused(f"it makes more than {MAX_EFFECTS} effects")
    return found
