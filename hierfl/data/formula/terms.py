"""What formulae's terms lack: an order in which each can be coded, and comparisons that do not fail."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any


def margins_first(terms: Sequence[Any]) -> list[Any]:
    """Effects with those that an interaction contains before it, each once, otherwise in their own order.

    formulae codes effects in the formula's order. In ``g:h + g`` the interaction has all columns of ``g``, and formulae
    fails at ``g``, which has none left.

    Args:
        terms: formulae's common terms.
    """
    ordered: list[Any] = []
    for term in terms:
        parts, earlier = _parts(term), [_parts(other) for other in ordered]
        if parts and parts in earlier:
            continue
        before = (index for index, others in enumerate(earlier) if parts and parts < others)
        ordered.insert(next(before, len(ordered)), term)
    return ordered


def has_each_once(terms: Sequence[Any]) -> bool:
    """Whether no two terms have the same name."""
    return len({term.name for term in terms}) == len(terms)


def own_copy(term: Any, known_components: set[int]) -> Any:
    """A term, or a copy of one that has a component of an earlier one.

    Args:
        term: of a formula.
        known_components: which components are known, written into.
    """
    parts = {id(part) for part in getattr(term, "components", ())}
    if parts & known_components:
        return deepcopy(term)
    known_components |= parts
    return term


def _parts(term: Any) -> frozenset[Any]:
    """The columns and calls that an effect is a product of; none of an intercept."""
    return frozenset(getattr(term, "components", ()))


def is_same_call(call: Any, other: object) -> bool:
    """Whether two arguments of formulae's calls are the same call.

    formulae compares each term with the earlier ones. Its own comparison raises an error where one has a call and the
    other has none, as in ``scale(log(x)) + scale(z)``.

    Args:
        call: an argument that is a call.
        other: an argument of any kind.
    """
    if not isinstance(other, type(call)):
        return False
    return bool(call.callee == other.callee and call.args == other.args and call.kwargs == other.kwargs)


def value_hash(value: Any) -> int:
    """The hash of a number in a call. That of formulae raises an error, as in ``(g + z) * (x + poly(w, 2))``.

    Args:
        value: formulae's number.
    """
    return hash((value.value, value.lexeme))
