"""Formulas of a response's own numbers, behind the model's: ``y ~ x + (1 | site); dispersion ~ arm``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...errors import UserError
from .effects import FormulaParser
from .parsed import DISPERSION, OWN_FORMULAS, Formula
from .tokens import Refused, tokens_of

_PARTS = re.compile(r"(`[^`]*`|'[^'\"]*'|\"[^'\"]*\")|(;)")


def parted(text: str) -> tuple[str, dict[str, str]]:
    """The model's formula, and the right sides of others by what they are of, as written.

    Args:
        text: of all.

    Raises:
        Refused: for a part that is of none of :data:`.parsed.OWN_FORMULAS`, or of one twice.
    """
    cuts = [match.start() for match in _PARTS.finditer(text) if match[2]]
    main, *parts = (text[a:b] for a, b in zip([0, *(cut + 1 for cut in cuts)], [*cuts, len(text)], strict=True))
    own: dict[str, str] = {}
    for part in parts:
        name, sign, right = (side.strip() for side in part.partition("~"))
        if name not in OWN_FORMULAS or not sign:
            known = " or ".join(f"{own_name} ~ ..." for own_name in OWN_FORMULAS)
            raise Refused(f"';' is not understood but before {known}")
        if name in own:
            raise Refused(f"it has two formulas of {name}")
        own[name] = right
    return main, own


def joined(formula: str, own: Mapping[str, str | None]) -> str:
    """One formula of all; a formula that is said replaces one that was there, and an empty one leaves it out.

    Args:
        formula: of the model, perhaps with others behind it.
        own: others, such as ``{"dispersion": "~ arm"}``; None leaves what is there.

    Raises:
        UserError: for what is no formula with its right side alone.
    """
    given = {name: text for name, text in own.items() if text is not None}
    if not given or not isinstance(formula, str):
        return formula
    for name, text in given.items():
        if not isinstance(text, str) or (text.strip() and not text.strip().startswith("~")) or ";" in text:
            raise UserError(f"{name} is a formula's right side, such as '~ arm', not {text!r}")
    try:
        main, parts = parted(formula)
    except Refused as refused:
        raise UserError(f"the formula {formula!r} cannot be read: {refused}") from refused
    parts |= {name: text.strip().removeprefix("~").strip() for name, text in given.items()}
    return "; ".join([main.strip(), *(f"{name} ~ {right}" for name, right in parts.items() if right)])


def check_formula_rank(name: str, columns: Mapping[str, np.ndarray]) -> None:
    """Refuses a formula one of whose columns is a combination of others.

    Args:
        name: what the formula is of.
        columns: its columns, (n,) each.

    Raises:
        UserError: for one.
    """
    every = np.column_stack([column / (np.abs(column).max() or 1.0) for column in columns.values()])
    for k, column in enumerate(columns):
        if np.linalg.matrix_rank(every[:, : k + 1]) <= k:
            raise UserError(f"in the formula of {name} {column!r} is a combination of other columns: leave it out")


def without_clients(formula: Formula) -> tuple[Formula, str]:
    """The fixed effects of a formula of dispersion, and the column whose effects it has beside them.

    Raises:
        Refused: for other random effects than one intercept.
    """
    term, *more = formula.random
    if more or term.effects.replace(" ", "") not in {f"({intercept}|{term.path[-1]})" for intercept in ("1", "0+1")}:
        raise Refused(f"the formula of {DISPERSION} has fixed effects and an intercept of clients, such as (1 | site)")
    left, _, right = formula.safe.partition(term.effects)
    sides = [side for side in (left.strip().removesuffix("+").strip(), right.strip().removeprefix("+").strip()) if side]
    if any(side.startswith("-") or side.endswith(("*", "/", ":", "-")) for side in sides):
        raise Refused(f"the formula of {DISPERSION} has (1 | {term.path[0]}) as a term by itself, joined by +")
    return replace(formula, safe=" + ".join(sides) or "1", random=()), term.path[0]


def read_formula(text: str) -> Formula:
    """A formula, with those of own numbers.

    Raises:
        Refused: for text that is none.
    """
    main, parts = parted(text)
    formula = FormulaParser(main).formula()
    own, predictors, selections, spread = dict[str, str](), formula.predictors, formula.selections, ""
    for name in (number for number in OWN_FORMULAS if number in parts):
        parsed = FormulaParser(parts[name]).formula()
        if name == DISPERSION and parsed.random and parsed.response is None:
            parsed, spread = without_clients(parsed)
        if parsed.response is not None or parsed.random or parsed.smooths:
            raise Refused(f"the formula of {name} has fixed effects alone, such as '~ arm'")
        if any(token.kind == "text" for token in tokens_of(parsed.safe)):
            raise Refused(f"the formula of {name} names columns, and no level of one: make it a column")
        if re.search(r"(?<![\w.`])offset\s*\(", parsed.safe):
            raise Refused(f"the formula of {name} has no offset")
        own[name], predictors = parsed.safe, predictors | parsed.predictors
        selections = tuple(dict.fromkeys([*selections, *parsed.selections]))
        if parsed.orders:
            raise Refused(f"the formula of {name} takes a category's levels as they are, without levels=[...]")
    if not own:
        return formula
    if not formula.random:
        raise Refused("formulas of own numbers stand beside a random term, such as (1 | site)")
    return replace(formula, text=text, predictors=predictors, selections=selections, own=own, spread=spread)
