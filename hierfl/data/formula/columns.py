"""What formulae makes of a formula and a table, and which columns are refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError, unknown
from . import gate
from .parsed import CLIENT
from .units import INTERCEPT

if TYPE_CHECKING:
    import pandas as pd

    from .parsed import Formula, Levels


#: columns whose largest number is above this, or below one over it, have squares and products that double precision
#: cannot hold
MAX_MAGNITUDE = 1e100


def read_terms(df: pd.DataFrame, terms: Formula, client: str | None, more: Collection[str]) -> tuple[Any, Levels]:
    """What formulae makes of the formula and the table, and which columns the random terms belong to.

    Args:
        df: the table.
        terms: of the formula.
        client: the clients' column, if it is known.
        more: columns that are used, and that the formula does not name.
    """
    _check_columns(df, terms, client, more)
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
    return read, levels


def effects_and_offset(common: Any) -> tuple[pd.DataFrame, np.ndarray | None]:
    """formulae's common columns without offsets, and the sum of these, (n,); None without one."""
    table = common.as_dataframe().astype(float)
    offsets = [name for name, term in common.terms.items() if term.kind == "offset"]
    return table.drop(columns=offsets), table[offsets].to_numpy().sum(1) if offsets else None


def _check_columns(df: pd.DataFrame, terms: Formula, client: str | None, more: Collection[str]) -> None:
    """Refuses columns that are not there, lack values, or hold what double precision cannot square."""
    for name in (client, *more):
        if not isinstance(name, str | None):
            raise UserError(f"a column is said by its name, not by {name!r}")
    if not df.columns.is_unique:
        raise UserError(f"the table has two columns called {df.columns[df.columns.duplicated()][0]!r}")
    if INTERCEPT[0] in terms.columns:
        raise UserError(f"a column called {INTERCEPT[0]!r} would be taken for the intercept: rename it")
    for name in [*sorted(terms.columns), *more, *([client] if client else [])]:
        if name not in df.columns:
            raise unknown("column", name, map(str, df.columns))
        column = df[name]
        missing = int(column.isna().sum())
        if missing:
            raise UserError(f"column {name!r} has {missing} missing value{'s' * (missing != 1)}")
        if column.dtype == object and len(kinds := {type(value) for value in column}) > 1:
            named = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise UserError(f"column {name!r} holds values of several types ({named})")
        if name not in more and name in (terms.response or set()) | terms.predictors and column.dtype.kind in "iuf":
            check_numbers(f"column {name!r}", column.to_numpy(dtype=float))


def check_numbers(what: str, column: np.ndarray) -> None:
    """Refuses numbers that are not finite, or that cannot be squared."""
    if not np.isfinite(column).all():
        raise UserError(f"{what} is not finite in {int((~np.isfinite(column)).sum())} of {len(column)} rows")
    largest = np.abs(column).max(initial=0)
    if largest > MAX_MAGNITUDE or 0 < largest < 1 / MAX_MAGNITUDE:
        raise UserError(f"{what} reaches {largest:g}, whose square is no double precision number: rescale it")


def check_slopes(random: Mapping[str, np.ndarray], who: np.ndarray, place: str) -> None:
    """Refuses a random slope beside an intercept where no group's rows differ in it.

    Args:
        random: columns of the random effects of one level.
        who: group of each row, (n,).
        place: what the groups are.

    Raises:
        UserError: for such a slope.
    """
    import pandas as pd

    for name, column in random.items():
        varies = pd.Series(column).groupby(who).nunique() > 1
        if name != INTERCEPT[0] and INTERCEPT[0] in random and not varies.any():
            raise UserError(f"no {place} can inform the random slope of {name!r}: it is the same in all rows of each")


def random_terms(terms: Formula, levels: Levels, read: Any, df: pd.DataFrame) -> dict[str, tuple[Any, ...]]:
    """formulae's columns of each random term by itself, by its level, with its own coding of categories (it cuts terms
    up, and codes them beside each other).

    Args:
        terms: of the formula.
        levels: of grouping.
        read: what formulae makes of all of it.
        df: a table that has all levels of categories.
    """
    if len(terms.random) == 1:
        return {CLIENT: (read.group,)}
    found = {}
    for name, of_level in levels.terms.items():
        found[name] = tuple(gate.evaluate(gate.parse(f"1 + {term.effects}"), df).group for term in of_level)
    return found


def random_columns(groups: Sequence[Any]) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """Each random effect's column, (n,), and how many each term has; effects of different terms are not correlated.

    Raises:
        UserError: for an effect that is in two terms.
    """
    columns: dict[str, np.ndarray] = {}
    blocks = []
    for group in groups:
        found: dict[str, np.ndarray] = {}
        for key, term in group.terms.items():
            for label, column in zip(term.labels, group[key].toarray().T, strict=True):
                name = label.rpartition("|")[0]
                name = INTERCEPT[0] if name == "1" else name
                found[name] = found.get(name, 0.0) + column.astype(float)
        if twice := [name for name in found if name in columns]:
            raise UserError(
                f"the random effect {twice[0]!r} is in two terms: leave it out of one, as in (0 + x | site)"
            )
        columns |= found
        blocks.append(len(found))
    return columns, tuple(blocks)
