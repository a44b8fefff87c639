"""What formulae makes of a formula and a table, and which columns are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ..column_names import one_column
from . import gate
from .column_types import typed_columns
from .curves import check_curves
from .hints import backquoted
from .literals import check_levels_named, in_listed_order
from .parsed import CLIENT, KINDS, OWN_FORMULAS
from .smooth import SmoothBasis
from .units import INTERCEPT

if TYPE_CHECKING:
    import pandas as pd

    from .parsed import Formula, Levels


#: columns whose largest number is above this, or below one over it, have squares and products that double precision
#: cannot hold
MAX_MAGNITUDE = 1e100
#: random columns of a level, (n,) each, and how many each of its terms has
Random = tuple[dict[str, np.ndarray], tuple[int, ...]]


def used_columns(df: pd.DataFrame, terms: Formula, client: str | None, more: Collection[str]) -> pd.DataFrame:
    """The table's columns that are used, as they are; others may be anything.

    Args:
        df: the table.
        terms: of the formula.
        client: the clients' column, if it is known.
        more: columns that are used, and that the formula does not name.

    Raises:
        UserError: for a column that is not there, or whose name two columns have; for a table without rows.
    """
    for name in (client, *more):
        if not isinstance(name, str | None):
            raise UserError(f"a column is said by its name, not by {name!r}")
    if INTERCEPT[0] in terms.columns:
        raise UserError(f"a column called {INTERCEPT[0]!r} would be taken for the intercept: rename it")
    names = dict.fromkeys([*sorted(terms.columns), *more, *([client] if client else [])])
    lacking, other = terms.columns - set(df.columns), backquoted(terms.text, list(df.columns))
    if lacking and other != terms.text:
        raise UserError(
            f"unknown column {min(lacking)!r}; names with other characters are between backquotes: {other!r}"
        )
    for name in names:
        one_column(df, name)
    used = df[list(names)]
    if not len(df):
        raise UserError("the table has no rows")
    return used


def read_terms(
    df: pd.DataFrame, terms: Formula, client: str | None, more: Collection[str]
) -> tuple[Any, Levels, pd.DataFrame]:
    """What formulae makes of the formula and the table, which columns the random terms belong to, and the table as it
    was read.

    Args:
        df: the table.
        terms: of the formula.
        client: the clients' column, if it is known.
        more: columns that are used, and that the formula does not name.
    """
    df = _checked(df, terms, client, more)
    if terms.response is None:
        raise UserError(f"the formula {terms.text!r} has no response")
    levels = terms.levels(client)
    if terms.response <= terms.predictors | terms.places:
        (name, *_) = sorted(terms.response)
        raise UserError(f"the response {name!r} is among its own predictors")
    read = gate.evaluate(terms, df)
    if read.common is None:
        raise UserError(f"the formula {terms.text!r} has no fixed effects; write at least y ~ 1 + ...")
    names = [term.name for term in read.model.common_terms]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two effects are both called {twice[0]!r} (formulae leaves parentheses out): rewrite one")
    check_curves(read.common.terms.values())
    return read, levels, df


def effects_and_offset(common: Any) -> tuple[pd.DataFrame, np.ndarray | None]:
    """formulae's common columns without offsets, and the sum of these, (n,); None without one."""
    table = common.as_dataframe().astype(float)
    offsets = [name for name, term in common.terms.items() if term.kind == "offset"]
    return (table.drop(columns=offsets), table[offsets].to_numpy().sum(1)) if offsets else (table, None)


def _checked(df: pd.DataFrame, terms: Formula, client: str | None, more: Collection[str]) -> pd.DataFrame:
    """Refuses columns that lack values, that no formula reads, or that hold what double precision cannot square; the
    others as they are read.
    """
    _refuse_missing(df, terms.levels(client).client)
    values = (terms.response or frozenset()) | terms.predictors | set(more)
    read = typed_columns(df, terms, sorted(values))
    other = {name: column for name, column in read.items() if column.dtype != df[name].dtype}
    df = df.assign(**other) if other else df
    for name in sorted(values - set(more)):
        if df[name].dtype.kind in "iuf":
            check_numbers(f"column {name!r}", df[name].to_numpy(dtype=float))
    check_levels_named(terms, df)
    return in_listed_order(df, terms)


def _refuse_missing(df: pd.DataFrame, unit: str) -> None:
    """Refuses columns that lack values: all of them in one line, but the clients' column by itself."""
    lacks = {name: int(df[name].isna().sum()) for name in sorted(df.columns)}
    lacks = {name: count for name, count in lacks.items() if count}
    if unit in lacks:
        way = f"whose these rows are is not known: write it, or keep the others by df.dropna(subset=[{unit!r}])"
        raise UserError(f"column {unit!r} has {_missing_values(lacks[unit])}: {way}")
    if lacks:
        first, *others = lacks
        more = "".join(f", {name!r} has {lacks[name]}" for name in others)
        way = "--na drop, or na='drop' in Python, leaves such rows out"
        raise UserError(f"column {first!r} has {_missing_values(lacks[first])}{more}: {way}")


def _missing_values(count: int) -> str:
    return f"{count} missing value{'s' * (count != 1)}"


def check_numbers(what: str, column: np.ndarray) -> None:
    """Refuses numbers that are not finite, or that cannot be squared."""
    if not np.isfinite(column).all():
        raise UserError(f"{what} is not finite in {int((~np.isfinite(column)).sum())} of {len(column)} rows")
    largest = np.abs(column).max(initial=0)
    if largest > MAX_MAGNITUDE or 0 < largest < 1 / MAX_MAGNITUDE:
        raise UserError(f"{what} reaches {largest:g}, whose square is no double precision number: rescale it")


def check_offset(offset: np.ndarray) -> None:
    """Refuses an offset that is not finite; of a logarithm it is so where an exposure is 0 or negative."""
    strange = int((~np.isfinite(offset)).sum())
    if strange:
        raise UserError(f"the offset is not finite in {strange} of {len(offset)} rows: is an exposure 0 or negative?")
    check_numbers("the offset", offset)


def check_slopes(random: Mapping[str, np.ndarray], who: np.ndarray, unit: str) -> None:
    """Refuses a random slope beside an intercept where no group's rows differ in it.

    Args:
        random: columns of the random effects of one level.
        who: group of each row, (n,).
        unit: what the groups are.

    Raises:
        UserError: for such a slope.
    """
    if INTERCEPT[0] not in random:
        return
    import pandas as pd

    for name, column in random.items():
        if name != INTERCEPT[0] and not (pd.Series(column).groupby(who).nunique() > 1).any():
            raise UserError(f"no {unit} can inform the random slope of {name!r}: it is the same in all rows of each")


def random_terms(terms: Formula, levels: Levels, read: Any, df: pd.DataFrame) -> dict[str, tuple[Any, ...]]:
    """formulae's columns of each random term by itself, by its level, with its own coding of categories (it cuts terms
    up, and codes them beside each other).

    Args:
        terms: of the formula.
        levels: of grouping.
        read: what formulae makes of all of it.
        df: a table that has all levels of categories.

    Raises:
        UserError: for a spline without an intercept in its term.
    """
    by_level: dict[str, tuple[Any, ...]] = {CLIENT: (read.group,)}
    if len(terms.random) > 1:
        for name, of_level in levels.terms.items():
            if name in OWN_FORMULAS:
                continue
            by_level[name] = tuple(gate.evaluate(gate.parse(f"1 + {term.effects}"), df).group for term in of_level)
    for name in terms.own:
        by_level[name] = tuple(
            gate.evaluate(gate.parse(f"1 + {term.effects}"), df).group for term in levels.terms[name]
        )
    for name, groups in by_level.items():
        for group, term in zip(groups, levels.terms[name], strict=True):
            check_curves((term.expr for term in group.terms.values()), f", here {term.effects}")
    return by_level


def random_columns(groups: Sequence[Any]) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """Each random effect's column, (n,), and how many each term has; effects of different terms are not correlated.

    Raises:
        UserError: for an effect that is in two terms.
    """
    columns: dict[str, np.ndarray] = {}
    blocks = []
    for group in groups:
        of_term: dict[str, np.ndarray] = {}
        for key, term in group.terms.items():
            for label, column in zip(term.labels, group[key].toarray().T, strict=True):
                name = label.rpartition("|")[0]
                name = INTERCEPT[0] if name == "1" else name
                of_term[name] = of_term.get(name, 0.0) + column.astype(float)
        if twice := [name for name in of_term if name in columns]:
            raise UserError(
                f"the random effect {twice[0]!r} is in two terms: leave it out of one, as in (0 + x | site)"
            )
        columns |= of_term
        blocks.append(len(of_term))
    return columns, tuple(blocks)


def with_smooths(random: Mapping[str, Random], bases: Mapping[str, SmoothBasis], df: pd.DataFrame) -> dict[str, Random]:
    """Random columns of each level with those of smooth terms, in the order of the design's columns.

    Args:
        random: of the levels that have groups, and of the formulas of own numbers.
        bases: of smooth terms, by kind.
        df: the rows.
    """
    by_level = dict(random)
    for kind, basis in bases.items():
        columns = basis.columns(df[basis.smooth.column].to_numpy(dtype=float))
        by_level[kind] = dict(zip(basis.smooth.names, columns.T, strict=True)), (1,) * columns.shape[1]
    return {kind: by_level[kind] for kind in (*KINDS, *OWN_FORMULAS) if kind in by_level}
