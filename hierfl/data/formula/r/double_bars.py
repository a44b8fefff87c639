"""Random effects without correlations: ``(1 + x || g)`` is ``(1 | g) + (0 + x | g)``, as lme4 takes it apart.

Each effect has a term of its own, interactions too. A category stays one term: its levels are correlated with each
other, as in lme4, and not with anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tokens import Refused, Token, sign
from .expanded import Effects


def without_double_bars(tokens: Sequence[Token]) -> list[Token]:
    """Tokens of a formula with each ``(... || g)`` taken apart.

    Raises:
        Refused: for effects that cannot be.
    """
    rewritten, opened, k = list(tokens), list[int](), 0
    while k < len(rewritten):
        if rewritten[k] == sign("("):
            opened.append(k)
        elif rewritten[k] == sign(")") and opened:
            opened.pop()
        elif (
            rewritten[k : k + 2] == [sign("|")] * 2
            and opened
            and not (opened[-1] and rewritten[opened[-1] - 1].kind == "name")
        ):
            first = opened.pop()
            end = next((i for i in range(k, len(rewritten)) if rewritten[i] == sign(")")), len(rewritten) - 1)
            new = _apart(rewritten[first + 1 : k], rewritten[k + 2 : end])
            rewritten[first : end + 1] = new
            k = first + len(new) - 1
        k += 1
    return rewritten


def _apart(effects: Sequence[Token], path: Sequence[Token]) -> list[Token]:
    """A term for each effect."""
    intercept, terms = Effects(effects).read()
    sides = [[Token("number", "1")]] if intercept else []
    for parts in terms:
        joined = [token for part in parts for token in (sign(":"), *part)][1:]
        sides.append([Token("number", "0"), sign("+"), *joined])
    if not sides:
        raise Refused("left of '||' there is no effect")
    whole = [token for side in sides for token in (sign("+"), sign("("), *side, sign("|"), *path, sign(")"))]
    return whole[1:]
