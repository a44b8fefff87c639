"""A table in which every name has one spelling: in a fit, and in new rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..column_names import no_column
from ..spellings import Spellings, as_known, joined, joined_inside
from .column_types import ColumnTypes
from .literals import texts

if TYPE_CHECKING:
    import pandas as pd

    from .groups import Groups
    from .parsed import Formula, Levels


def spelled(df: pd.DataFrame, terms: Formula, levels: Levels, spellings: Spellings) -> pd.DataFrame:
    """A table that is to be fitted, with one spelling of each name.

    A spelling that the formula names wins, as in ``I(arm == 'drug')``; else see :func:`~hierfl.data.spellings.joined`.

    Args:
        df: the table's columns that are used.
        terms: of the formula.
        levels: of grouping.
        spellings: what becomes of names that are spelled alike.

    Raises:
        UserError: for such names where they are refused.
    """
    for name in spellings.columns:
        if name not in df.columns:
            raise no_column(name, df.columns, "spellings names a column that is not used,")
    chosen = texts(terms)
    renamed: dict[str, pd.Series] = {}
    for name in dict.fromkeys([levels.client, levels.outer, *sorted(terms.predictors), *sorted(terms.response or ())]):
        if name in df.columns and name not in levels.inner_columns:
            column = df[name]
            spelled_alike = joined(column, spellings[name], chosen)
            renamed |= {} if spelled_alike is column else {name: spelled_alike}
    df = df.assign(**renamed) if renamed else df
    for name in levels.inner_columns:
        if name in df.columns:
            clients = df[levels.client].to_numpy(dtype=object)
            df = df.assign(**{name: joined_inside(clients, df[name], spellings[name])})
    return df


def as_fitted(df: pd.DataFrame, types: ColumnTypes, places: Groups, spellings: Spellings) -> pd.DataFrame:
    """New rows, with names in the spelling of the fit.

    Args:
        df: the rows.
        types: of the fit's predictors.
        places: the fit's groups.
        spellings: what became of names that are spelled alike.

    Raises:
        UserError: for a name that is spelled like one of the fit, where such names are refused.
    """
    levels, renamed = places.levels, dict[str, np.ndarray]()
    clients: Mapping[str, object] = places.homes or places.inner
    names_by_column = {**types.levels, levels.outer: tuple(places.outer), levels.client: tuple(clients)}
    for name, names in names_by_column.items():
        if name in df.columns and df[name].dtype.kind == "O":
            values = df[name].to_numpy(dtype=object)
            changed = as_known(values, names, spellings[name], f"column {name!r}")
            renamed |= {} if changed is values else {name: changed}
    df = df.assign(**renamed)
    for name in levels.inner_columns if levels.client in df.columns else ():
        if name in df.columns and df[name].dtype.kind == "O":
            groups = df[name].to_numpy(dtype=object).copy()
            who = df[levels.client].astype(str).to_numpy(dtype=object)
            for client in set(who.tolist()) & places.inner.keys():
                rows, what = who == client, f"column {name!r}"
                groups[rows] = as_known(groups[rows], places.names_inside(name, client), spellings[name], what)
            df = df.assign(**{name: groups})
    return df
