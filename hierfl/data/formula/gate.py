"""The gate before formulae: reads a formula's text, and refuses whatever is not on the lists.

formulae looks names up in Python namespaces and calls what it finds there, so that a formula is a program. A formula
comes from a command line, a config.toml or a colleague: it is data. So it is tokenised (:mod:`.tokens`) and parsed
(:mod:`.effects`, :mod:`.arguments`) here first:

    formula   [response ~] sum                                        response: a column, or one call
    sum       effects joined by + and -, with * / : and (a + b)**2    effects: 0, 1, a column, a call, {arithmetic}
    random    (sum | column)
    call      a name of :data:`hierfl.data.formula.calls.CALLS` with the arguments that it takes there
    arguments columns, numbers, + - * / **, one comparison

Columns are names, or anything between backquotes. A name before a parenthesis is always a function and never a column;
any other name is always a column, whatever functions are called. What formulae gets are the tokens that were
understood, and a namespace that holds these functions and nothing else: no frame of the caller's.

This is the only module that imports formulae.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from functools import lru_cache
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from .calls import INTEGER, NUMPY, WHOLE_NUMBER_RANGES
from .hints import hint, rewritten
from .own_numbers import read_formula
from .parsed import Formula
from .terms import has_each_once, is_same_call, margins_first, own_copy, value_hash
from .tokens import MAX_CHARACTERS, Refused, Token, tokens_of

if TYPE_CHECKING:
    import pandas as pd


#: numbers in the fixed effects' matrix, 2 GB of them
MAX_CELLS = 250_000_000


def parse(text: object, columns: Collection[str] = ()) -> Formula:
    """Reads a formula, and looks at nothing else: no table, no namespace.

    Args:
        text: of the formula.
        columns: names of a table's columns, for what a message suggests.

    Raises:
        UserError: for text that is no formula, is too large, or names a function that is not on the list; with the
            formula as it can be read, where it is written as in R.
    """
    if not isinstance(text, str):
        raise UserError(f"a formula is text, such as 'y ~ 1 + x + (1 + x | site)', not {text!r}")
    try:
        return _read(text)
    except Refused as refused:
        raise UserError(f"the formula {shorten(text)!r} cannot be read: {_hinted(text, columns, refused)}") from refused


@lru_cache(maxsize=256)
def _read(text: str) -> Formula:
    return read_formula(text)


def _hinted(text: str, columns: Collection[str], refused: Refused) -> str:
    """What is wrong with a formula, and how to write it."""

    def reads(other: str) -> bool:
        try:
            read_formula(other)
        except Refused:
            return False
        return True

    if len(text) > MAX_CHARACTERS:
        return str(refused)
    other, note = hint(text, columns, reads)
    problem = str(refused).partition("; known:")[0] if other else str(refused)
    return problem + (f": write {other!r}" if other else "") + (f"; {note}" if note else "")


def of_all_rows(formula: Formula) -> list[str]:
    """Functions that a formula calls and that keep something of all rows, such as a mean or knots; sorted."""
    from formulae.transforms import TRANSFORMS

    called = set(re.findall(r"(?<![\w.])(\w+)\s*\(", re.sub("`[^`]*`", " ", formula.calls)))
    # Formulae's transforms with a memory are classes, and those of single rows are functions.
    return sorted(name for name in called if isinstance(TRANSFORMS.get(name), type))


def response_alone(formula: Formula) -> Formula:
    """A formula of the same response, without effects."""
    tokens = list(tokens_of(formula.safe))
    if Token("sign", "~") not in tokens:
        raise UserError(
            f"the formula {shorten(formula.text)!r} has no response: write y ~ {formula.text}, y the response"
        )
    left = tokens[: tokens.index(Token("sign", "~"))]
    return parse(f"{' '.join(token.text for token in left)} ~ 1")


def shorten(text: str) -> str:
    """A formula as messages show it."""
    return text if len(text) <= 300 else f"{text[:297]}..."


def namespace() -> dict[str, Any]:
    """What a formula can name, beside columns and formulae's own transforms: NumPy's functions of the list."""
    functions = {name: getattr(np, name) for name in NUMPY}
    return {**functions, "np": SimpleNamespace(**functions), "c": _listed}


def _listed(*values: Any) -> list[Any]:
    """A list, which formulae itself cannot write."""
    return list(values)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Lets formulae and NumPy evaluate without a word: what comes out is checked, and faults are raised.

    formulae prints on standard output and logs before it raises.
    """
    log = logging.getLogger("formulae")
    disabled, log.disabled = log.disabled, True
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = disabled


def evaluate(formula: Formula, df: pd.DataFrame) -> Any:
    """formulae's design matrices of a table, with one block of random columns.

    formulae makes a block of columns for each level of a grouping factor, rows x levels numbers in memory. A row has
    zeros in all blocks but its own client's, whose columns are those of the term's left side. So the factor is replaced
    by a column that has one level: what is on the left is evaluated and encoded as before, once.

    Raises:
        UserError: with what formulae says, where the two do not fit.
    """
    from formulae.environment import Environment

    constant = "one client"
    while constant in df.columns:
        constant += "_"
    try:
        with quietly():
            table, names = in_own_order(df, formula).assign(**{constant: 0}), Environment([namespace()])
            try:
                model, read = _designed(_described(formula, df, constant, list), table, names)
                is_coded = has_each_once(model.common_terms)
            except IndexError:  # of an effect that an earlier interaction has left no column
                is_coded = False
            if not is_coded:
                model, read = _designed(_described(formula, df, constant, margins_first), table, names)
            if any(term.expr.kind not in ("intercept", "numeric") for term in model.group_terms):
                read.group = _coded_as_fixed(model, table, names)
            return read
    except UserError:
        raise
    except Exception as fault:  # its parser, resolver and transforms raise what they like
        alone = [name for name in sorted(formula.predictors & set(df.columns)) if is_alone(df[name])]
        if alone and re.search(r"concatenate|division by zero", str(fault)):
            raise UserError(
                f"column {alone[0]!r} has one level, {df[alone[0]].iloc[0]!r}, in all rows, and no effect: leave it out"
            ) from fault
        raise misfit(formula, fault) from fault


def _described(formula: Formula, df: pd.DataFrame, constant: str, order: Callable[[Sequence[Any]], list[Any]]) -> Any:
    """formulae's description of a formula, whose grouping factors are one column.

    Args:
        formula: what to describe.
        df: the table.
        constant: the name of the column.
        order: puts the fixed effects in order.
    """
    from formulae import model_description
    from formulae.terms.call_resolver import LazyCall, LazyValue
    from formulae.terms.terms import Term
    from formulae.terms.variable import Variable

    LazyCall.__eq__, LazyValue.__hash__ = is_same_call, value_hash
    model = model_description(formula.safe)
    _check_width(model, df)
    # A/x is a + a:x of one object a, whose coding in the second term would be that of the first.
    known_components = set[int]()
    model.common_terms = [own_copy(term, known_components) for term in order(model.common_terms)]
    for term in model.group_terms:
        term.expr, term.factor = own_copy(term.expr, known_components), Term(Variable(constant))
    return model


def _designed(model: Any, table: pd.DataFrame, names: Any) -> tuple[Any, Any]:
    """A model with formulae's design matrices of it.

    Of ``a + b * c * d / a`` formulae adds the interactions that the last one contains, and not those that these
    contain in turn. It adds these when it is asked again.
    """
    from formulae.matrices import DesignMatrices

    read = DesignMatrices(model, table, names)
    while has_each_once(model.common_terms) and any(len(codes) > 1 for codes in model._get_encoding_bools().values()):
        read = DesignMatrices(model, table, names)
    return model, read


def is_alone(column: pd.Series) -> bool:
    """Whether a category has one level."""
    return column.dtype.kind not in "biuf" and column.nunique() == 1


def _coded_as_fixed(model: Any, table: pd.DataFrame, names: Any) -> Any:
    """The random columns, with categories coded as among fixed effects: their columns span R's.

    formulae codes each category beside a random intercept without its first level, whatever else there is. Of
    (1 + a:x | site) that level would have no slope, and (1 + a:b | site) would have no main effects.
    """
    from formulae.matrices import GroupEffectsMatrix
    from formulae.terms.terms import GroupSpecificTerm

    factor = model.group_terms[0].factor
    effects = type(model)(*{term.name: deepcopy(term.expr) for term in model.group_terms}.values())
    try:
        _designed(effects, table, names)  # finds the coding of each effect
    except IndexError as fault:
        raise UserError(
            "a random effect is part of an interaction before it, which has all of its columns: write main effects "
            "before their interactions"
        ) from fault
    terms = [GroupSpecificTerm(effect, deepcopy(factor)) for effect in effects.common_terms]
    for term, effect in zip(terms, effects.common_terms, strict=True):
        term.set_type(table, names)
        term.set_data({part.name: bool(part.spans_intercept) for part in getattr(effect, "components", ())})
    group = GroupEffectsMatrix(terms)
    group.evaluate(table, names)
    return group


def in_own_order(df: pd.DataFrame, formula: Formula) -> pd.DataFrame:
    """Predictors that are pandas categories with their levels in the order that they say, the reference first.

    formulae keeps the order of an ordered category, and sorts another one's levels. Levels without rows are left out.
    """
    columns = {}
    for name in sorted(formula.predictors):
        if name in df.columns and hasattr(df[name], "cat"):
            columns[name] = df[name].cat.remove_unused_categories().cat.as_ordered()
    return df.assign(**columns) if columns else df


def _check_width(model: Any, df: pd.DataFrame) -> None:
    """Refuses effects whose columns would fill the memory: interactions of categories have products of their levels."""

    def columns(component: Any) -> int:
        split = re.search(r"\b[CST]\(", component.name) is not None  # numbers made categories
        names = [name for name in component.var_names if name in df]
        levels = [df[name].nunique() for name in names if split or df[name].dtype.kind not in "biuf"]
        smooth = re.match(r"(bs|cr|cc|tp|poly)\(", component.name) is not None
        return max([WHOLE_NUMBER_RANGES[INTEGER][1] if smooth else 1, *levels])

    whole = 0
    for term in model.terms:
        effect = getattr(term, "expr", term)
        width = prod(columns(component) for component in getattr(effect, "components", ()))
        whole += width
        if whole > MAX_CELLS // len(df):
            alone = width > MAX_CELLS // len(df)
            which, many = (f"the effect {effect.name!r} has", width) if alone else ("its effects have", whole)
            raise UserError(f"{which} up to {many:,} columns, too many for {len(df):,} rows")


def misfit(formula: Formula, fault: Exception) -> UserError:
    """The error for a formula and a table that do not fit."""
    reason = f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300]
    if "'successes'" in reason:
        reason += ": of shares, multiply by the trials, and round"
    elif (other := rewritten(formula.text)) not in (formula.text, formula.text.replace("^", "**")):
        reason += f": write {other!r}"
    return UserError(f"the formula {shorten(formula.text)!r} does not fit the table: {reason}")
