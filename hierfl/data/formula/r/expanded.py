"""Effects as R expands them: ``x * z`` is x, z and x:z, and ``- z:x`` takes the last away again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ..tokens import MAX_EFFECTS, MAX_EXPONENT, Refused, Token, sign

#: the parts of an interaction, each a column or a call
Effect = tuple[tuple[Token, ...], ...]
UNREAD = "the effects left of '||' are taken apart: write each as a term of its own, as in (1 | g) + (0 + x | g)"


class Effects:
    """Effects as R expands them, in their order."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.place = [*tokens, Token("end", "")], 0

    def read(self) -> tuple[bool, list[Effect]]:
        """Whether there is an intercept, and the effects.

        Raises:
            Refused: for what R would not read, and for a subtraction that takes nothing away.
        """
        intercept, found = True, list[Effect]()
        while True:
            minus = self._signs()
            here, after = self.tokens[self.place], self.tokens[min(self.place + 1, len(self.tokens) - 1)]
            if here.text in ("0", "1") and (after.kind == "end" or after in (sign("+"), sign("-"))):
                self.place += 1
                intercept = (here.text == "1") != minus
            elif minus:
                found = without(found, self._product())
            else:
                found = joined(found, self._product())
            if self.tokens[self.place].kind == "end":
                return intercept, found
            if self.tokens[self.place] not in (sign("+"), sign("-")):
                raise Refused(UNREAD)

    def _signs(self) -> bool:
        """Whether those that are next make a minus: ``x + -1`` is ``x - 1``."""
        minus = False
        while found := self._take("+", "-"):
            minus ^= found == "-"
        return minus

    def _take(self, *signs: str) -> str:
        here = self.tokens[self.place]
        if here.kind != "sign" or here.text not in signs:
            return ""
        self.place += 1
        return here.text

    def _sum(self) -> list[Effect]:
        found = self._product()
        while taken := self._take("+", "-"):
            found = (joined if taken == "+" else without)(found, self._product())
        return found

    def _product(self) -> list[Effect]:
        found = self._interaction()
        while kind := self._take("*", "/"):
            more = self._interaction()
            whole = [tuple(part for one in found for part in one)] if kind == "/" else found
            found = joined(found, [*(more if kind == "*" else []), *_crossed(whole, more)])
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
            raise Refused(UNREAD)
        whole = list[Effect]()
        for size in range(1, int(exponent.text) + 1):
            for chosen in combinations(found, size):
                whole = joined(whole, [tuple(dict.fromkeys(part for one in chosen for part in one))])
        return whole

    def _part(self) -> list[Effect]:
        if self._take("("):
            found = self._sum()
            if not self._take(")"):
                raise Refused(UNREAD)
            return found
        first = self.place
        if self.tokens[first].kind in ("name", "quoted"):
            self.place += 1
        elif self.tokens[first] != sign("{"):
            raise Refused(UNREAD)
        if self.tokens[self.place] in (sign("("), sign("{")):
            depth = 0
            while True:
                depth += (self.tokens[self.place].text in ("(", "{")) - (self.tokens[self.place].text in (")", "}"))
                self.place += 1
                if not depth:
                    break
                if self.tokens[self.place].kind == "end":
                    raise Refused(UNREAD)
        return [(tuple(self.tokens[first : self.place]),)]


def _crossed(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """Their interactions."""
    return joined([], [tuple(dict.fromkeys((*one, *other))) for one in some for other in others])


def joined(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """Each once; the parts of an interaction have no order."""
    found = list(some)
    for one in others:
        if frozenset(one) not in map(frozenset, found):
            found.append(one)
    if len(found) > MAX_EFFECTS:
        raise Refused(f"it makes more than {MAX_EFFECTS} effects")
    return found


def without(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """Those that are not among the others, in whichever order the parts of an interaction are.

    Raises:
        Refused: where that takes nothing away.
    """
    left = [one for one in some if frozenset(one) not in map(frozenset, others)]
    if len(left) == len(some):
        what = " and ".join(":".join("".join(token.text for token in part) for part in one) for one in others)
        raise Refused(f"'-' takes {what} away, which is not among the effects before it")
    return left
