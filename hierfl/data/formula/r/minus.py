"""What a formula takes away with "-", as R does; formulae has no "- 1" among random effects, and to it z:x is not x:z.

A sign in the arguments of a function is arithmetic, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tokens import Refused, Token, sign
from .expanded import Effect, Effects, joined, without

_INTERCEPTS = ([Token("number", "0")], [Token("number", "1")])
#: one of a sum: whether it is taken away, and its tokens
_Item = tuple[bool, list[Token]]


def without_minus(tokens: Sequence[Token]) -> list[Token]:
    """Tokens of a formula with each ``(x - 1 | g)`` as (0 + x | g), and ``x * z - z:x`` as x * z - x:z.

    Raises:
        Refused: for a subtraction that takes nothing away.
    """
    rewritten, opened, k = list(tokens), list[int](), 0
    while k < len(rewritten):
        if rewritten[k] == sign("("):
            opened.append(k)
        elif rewritten[k] == sign(")") and opened:
            opened.pop()
        elif rewritten[k] == sign("|") and opened:
            first = opened[-1] + 1
            new = _in_order(_intercept_first(rewritten[first:k]))
            rewritten[first:k], k = new, first + len(new)
        k += 1
    start = rewritten.index(sign("~")) + 1 if sign("~") in rewritten else 0
    return [*rewritten[:start], *_in_order(rewritten[start:-1]), *rewritten[-1:]]


def _items(tokens: Sequence[Token]) -> list[_Item]:
    """What a sum joins; none for tokens that are no sum."""
    items, depth = list[_Item]([(False, [])]), 0
    for token in tokens:
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth or token not in (sign("+"), sign("-")):
            items[-1][1].append(token)
        elif items[-1][1]:
            items.append((token == sign("-"), []))
        else:  # x + -1 is x - 1
            items[-1] = (items[-1][0] != (token == sign("-")), [])
    return items if items[-1][1] else []


def _written(items: Sequence[_Item]) -> list[Token]:
    """Tokens of a sum."""
    whole = [token for minus, tokens in items for token in (sign("-" if minus else "+"), *tokens)]
    return whole if items[0][0] else whole[1:]


def _intercept_first(tokens: list[Token]) -> list[Token]:
    """A sum with one 0 or 1, at its beginning: the last one counts, and -1 is 0."""
    items = _items(tokens)
    intercepts = [(text == _INTERCEPTS[1]) != minus for minus, text in items if text in _INTERCEPTS]
    if not intercepts or (len(intercepts) == 1 and not items[0][0] and items[0][1] in _INTERCEPTS):
        return tokens
    return _written([(False, _INTERCEPTS[intercepts[-1]]), *(item for item in items if item[1] not in _INTERCEPTS)])


def _in_order(tokens: list[Token]) -> list[Token]:
    """A sum in which the effects that are taken away are written as those from which they are."""
    items, effects_so_far, new = _items(tokens), list[Effect](), list[_Item]()
    if (True, _INTERCEPTS[0]) in items:  # in R it puts the intercept back, which is there unless it was taken away
        if sum(text in _INTERCEPTS for _, text in items) > 1:
            raise Refused("'- 0' beside another 0 or 1: write one of them, 0 for no intercept")
        items = [item for item in items if item[1] not in _INTERCEPTS] or [(False, _INTERCEPTS[1])]
        tokens = _written(items)
    for minus, text in items:
        if minus and sign("*") in text and sign("(") not in text and any(part.kind == "number" for part in text):
            what = " ".join(part.text for part in text)[:60]
            raise Refused(f"{what!r} after a '-' is no effect that could be taken away: write the effects that stay")
    plain = [item for item in items if item[1] not in _INTERCEPTS and sign("|") not in item[1]]
    if not any(minus for minus, _ in plain):
        return tokens
    for minus, tokens_of_item in items:
        if (minus, tokens_of_item) not in plain:
            new.append((minus, tokens_of_item))
            continue
        try:
            effects = Effects(tokens_of_item).read()[1]
        except Refused:
            if minus:  # which the parser says better
                return tokens
            what = " ".join(token.text for token in tokens_of_item)[:60]
            raise Refused(f"which effects {what!r} has is not understood beside a '-': write those that stay") from None
        if not minus:
            effects_so_far = joined(effects_so_far, effects)
            new.append((minus, tokens_of_item))
            continue
        before, effects_so_far = effects_so_far, without(effects_so_far, effects)
        gone = [effect for effect in before if effect not in effects_so_far]
        new += [(True, [token for part in effect for token in (sign(":"), *part)][1:]) for effect in gone]
    return _written(new)
