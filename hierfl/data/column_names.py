"""Names of a table's columns: a name that is not there, or that two columns have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import UserError
from .spellings import folded

if TYPE_CHECKING:
    import pandas as pd

#: how many names a message lists
NAMES_SHOWN = 30


def no_column(name: str, columns: Iterable[object], what: str = "unknown column") -> UserError:
    """The error for a column that is not there: with the nearest name that is, and every name between quotes.

    Args:
        name: that was looked for.
        columns: names of the table's columns.
        what: how the message begins, before the name.
    """
    names = [str(column) for column in columns]
    listed = ", ".join(map(repr, names[:NAMES_SHOWN]))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    near = nearest(name, names)
    hint = f"; did you mean {near!r}? A formula writes it `{near}`, between backquotes" if near else ""
    if near and near.isidentifier():
        hint = f"; did you mean {near!r}?"
    return UserError(f"{what} {name!r}{hint}; known: {listed}{more}")


def nearest(name: str, names: Iterable[str]) -> str:
    """The name that is most like another one; empty where none is."""
    by_fold = {folded(candidate): candidate for candidate in reversed(list(names))}
    if folded(name) in by_fold:
        return by_fold[folded(name)]
    close = difflib.get_close_matches(folded(name), by_fold, n=1, cutoff=0.75)
    return by_fold[close[0]] if close else ""


def lacks(name: str, names: Iterable[object]) -> UserError:
    """The error for a site's table without a column of the study: it shows no name but one that is spelled alike."""
    alike = [str(other) for other in names if folded(str(other)) == folded(name)]
    hint = f"; it has {alike[0]!r}" if alike else ""
    return UserError(f"the table has no column {name!r}, which the study's dictionary has{hint}")


def as_table(df: object) -> pd.DataFrame:
    """A table whose columns are named by text: 3 is called "3".

    Raises:
        UserError: for what is no table with one name for each column.
    """
    import pandas as pd

    if not isinstance(df, pd.DataFrame):
        way = "its to_pandas() is one" if hasattr(df, "to_pandas") else "pd.DataFrame(...) makes one"
        if isinstance(df, str) or hasattr(df, "__fspath__"):
            way = f"pandas.read_csv({str(df)!r}) or hierfl.read_table({str(df)!r}) makes one"
        if isinstance(df, pd.Series):
            way = "of one row df.iloc[[0]] is one, with two brackets"
        raise UserError(f"a table is a pandas.DataFrame, not {type(df).__name__}: {way}")
    if df.columns.nlevels > 1:
        raise UserError(
            "the table's columns have names of several levels: make them one, as in "
            "df.columns = ['_'.join(map(str, name)) for name in df.columns]"
        )
    if all(isinstance(name, str) for name in df.columns):
        return df
    return df.set_axis([str(name) for name in df.columns], axis=1)


def one_column(df: pd.DataFrame, name: str) -> pd.Series:
    """A column of a table. Other columns of the table may have one name.

    Raises:
        UserError: for a name that is not there, or that two columns have.
    """
    if name not in df.columns:
        raise no_column(name, df.columns)
    if not df.columns.is_unique and int((df.columns == name).sum()) > 1:
        raise UserError(f"the table has two columns called {name!r}: rename one")
    return df[name]
