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
        self.tokens, self.position = [*tokens, Token("end", "")], 0

    def read(self) -> tuple[bool, list[Effect]]:
        """Whether there is an intercept, and the effects.

        Raises:
            Refused: for what R would not read, and for a subtraction that takes nothing away.
        """
        intercept, effects = True, list[Effect]()
        while True:
            minus = self._signs()
            token, after = self.tokens[self.position], self.tokens[min(self.position + 1, len(self.tokens) - 1)]
            if token.text in ("0", "1") and (after.kind == "end" or after in (sign("+"), sign("-"))):
                self.position += 1
                intercept = (token.text == "1") != minus
            elif minus:
                effects = without(effects, self._product())
            else:
                effects = joined(effects, self._product())
            if self.tokens[self.position].kind == "end":
                return intercept, effects
            if self.tokens[self.position] not in (sign("+"), sign("-")):
                raise Refused(UNREAD)

    def _signs(self) -> bool:
        """Whether those that are next make a minus: ``x + -1`` is ``x - 1``."""
        minus = False
        while taken := self._take("+", "-"):
            minus ^= taken == "-"
        return minus

    def _take(self, *signs: str) -> str:
        token = self.tokens[self.position]
        if token.kind != "sign" or token.text not in signs:
            return ""
        self.position += 1
        return token.text

    def _sum(self) -> list[Effect]:
        effects = self._product()
        while taken := self._take("+", "-"):
            effects = (joined if taken == "+" else without)(effects, self._product())
        return effects

    def _product(self) -> list[Effect]:
        effects = self._interaction()
        while kind := self._take("*", "/"):
            more = self._interaction()
            whole = [tuple(part for effect in effects for part in effect)] if kind == "/" else effects
            effects = joined(effects, [*(more if kind == "*" else []), *_crossed(whole, more)])
        return effects

    def _interaction(self) -> list[Effect]:
        effects = self._power()
        while self._take(":"):
            effects = _crossed(effects, self._power())
        return effects

    def _power(self) -> list[Effect]:
        effects = self._part()
        if not self._take("**"):
            return effects
        exponent = self.tokens[self.position]
        self.position += 1
        if not exponent.text.isdigit() or not 1 <= int(exponent.text) <= MAX_EXPONENT or len(effects) < 2:
            raise Refused(UNREAD)
        whole = list[Effect]()
        for size in range(1, int(exponent.text) + 1):
            for chosen in combinations(effects, size):
                whole = joined(whole, [tuple(dict.fromkeys(part for effect in chosen for part in effect))])
        return whole

    def _part(self) -> list[Effect]:
        if self._take("("):
            effects = self._sum()
            if not self._take(")"):
                raise Refused(UNREAD)
            return effects
        first = self.position
        if self.tokens[first].kind in ("name", "quoted"):
            self.position += 1
        elif self.tokens[first] != sign("{"):
            raise Refused(UNREAD)
        if self.tokens[self.position] in (sign("("), sign("{")):
            depth = 0
            while True:
                text = self.tokens[self.position].text
                depth += (text in ("(", "{")) - (text in (")", "}"))
                self.position += 1
                if not depth:
                    break
                if self.tokens[self.position].kind == "end":
                    raise Refused(UNREAD)
        return [(tuple(self.tokens[first : self.position]),)]


def _crossed(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """The interactions of the terms."""
    return joined([], [tuple(dict.fromkeys((*effect, *other))) for effect in some for other in others])


def joined(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """Each once; the parts of an interaction have no order."""
    effects = list(some)
    for effect in others:
        if frozenset(effect) not in map(frozenset, effects):
            effects.append(effect)
    if len(effects) > MAX_EFFECTS:
        raise Refused(f"it makes more than {MAX_EFFECTS} effects")
    return effects


def without(some: Sequence[Effect], others: Sequence[Effect]) -> list[Effect]:
    """Those that are not among the others, in whichever order the parts of an interaction are.

    Raises:
        Refused: where that takes nothing away.
    """
    left = [effect for effect in some if frozenset(effect) not in map(frozenset, others)]
    if len(left) == len(some):
        what = " and ".join(":".join("".join(token.text for token in part) for part in effect) for effect in others)
        raise Refused(f"'-' takes {what} away, which is not among the effects before it")
    return left
