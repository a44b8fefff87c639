"""Effects that could be read in two ways, and are refused: two expressions of one name, True and False beside R."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ...errors import UserError


def check_unambiguous(read: Any, groups: Mapping[str, Sequence[Any]], truths: Collection[str]) -> None:
    """Refuses effects that could be read in two ways.

    Args:
        read: formulae's design matrices.
        groups: its random columns, level by level and term by term.
        truths: columns of True and False.

    Raises:
        UserError: for two expressions that formulae calls by one name, since it leaves parentheses out; for a column of
            True and False where R's factor makes another model of the formula.
    """
    fixed = list(read.common.terms.values())
    random = [[term.expr for term in group.terms.values()] for of_level in groups.values() for group in of_level]
    _check_names([term for terms in (fixed, *random) for term in terms])
    for terms in (fixed, *random):
        _check_coding(terms, truths)


def bare_truths(read: Any, truths: Collection[str]) -> list[str]:
    """Columns of True and False that are numbers among the fixed effects, as they stand.

    Args:
        read: formulae's design matrices.
        truths: columns of True and False.
    """
    names = [part.name for term in read.common.terms.values() for part in _parts(term) if _is_bare(part, truths)]
    return list(dict.fromkeys(names))


def _parts(term: Any) -> Sequence[Any]:
    """The factors of a term; none of the intercept."""
    parts: Sequence[Any] = getattr(term, "components", ())
    return parts


def _is_bare(part: Any, truths: Collection[str]) -> bool:
    return part.name in truths and not hasattr(part, "call")


def _check_names(terms: Iterable[Any]) -> None:
    written_as: dict[str, tuple[Any, ...]] = {}
    for term in terms:
        for part in _parts(term):
            written = _written(getattr(part, "call", part.name))
            if written_as.setdefault(part.name, written) != written:
                raise UserError(f"two effects are both called {part.name!r} (parentheses are left out): rewrite one")


def _written(node: Any) -> tuple[Any, ...]:
    """An expression with its order of evaluation."""
    inside = getattr(node, "args", None)
    if inside is None:
        return (str(node),)
    named = getattr(node, "kwargs", {})
    head = getattr(node, "symbol", None) or node.callee
    return (str(head), *map(_written, inside), *((name, _written(value)) for name, value in named.items()))


def _check_coding(terms: Sequence[Any], truths: Collection[str]) -> None:
    """R codes a factor of a term by its contrasts where the formula has the rest of the term, too, and else by all
    levels (without an intercept the first factor has all); a number is always one column.
    """
    names = [frozenset(part.name for part in _parts(term)) for term in terms]
    all_levels = False  # of a category, which then represents the intercept
    for term, own in zip(terms, names, strict=True):
        for part in _parts(term):
            rest = own - {part.name}
            if _is_bare(part, truths) and rest not in names and (rest or not all_levels):
                raise UserError(
                    f"column {part.name!r} holds True and False, a number here and a factor in R, which makes another "
                    f"model of {term.name!r}: write factor({part.name})"
                )
        all_levels = all_levels or (len(own) == 1 and _parts(term)[0].kind == "categoric")
