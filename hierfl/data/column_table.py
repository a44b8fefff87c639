"""A table's columns by name, as the data of a plain Pyro model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .column_design import ColumnDesign
from .column_names import as_table, one_column
from .far_numbers import spread_of
from .frames import check_column
from .reading.frames import note_quantities, refuse_text, warn_of_codes
from .reading.read import CHECKED, is_text
from .spellings import one_spelling

if TYPE_CHECKING:
    import pandas as pd

#: the response that a federation has and a plain model does not need: it is 0 in every row
NO_RESPONSE = "hierfl.no_response"


def levels_of(column: pd.Series) -> tuple[str, ...] | None:
    """Levels of a column of text, sorted, or of a pandas Categorical, in its order; None of other columns."""
    if hasattr(column.dtype, "categories"):
        return tuple(map(str, column.cat.categories))
    return tuple(sorted(set(map(str, column.dropna())))) if is_text(column) else None


def outline(df: pd.DataFrame, client: str, columns: Collection[str] | None = None) -> ColumnDesign:
    """What columns a table has, and their levels; no value is checked.

    Args:
        df: the table.
        client: the column that names the clients, which is none of them.
        columns: those that are meant; None for all.

    Raises:
        UserError: for columns that are not there, or there twice.
    """
    df = as_table(df)
    _client_column(df, client)
    names = [name for name in dict.fromkeys(df.columns) if name != client] if columns is None else list(columns)
    levels = {name: of_column for name in names if (of_column := levels_of(one_column(df, name))) is not None}
    return ColumnDesign.from_columns(names, levels)


def column_table(
    df: pd.DataFrame,
    client: str,
    columns: Collection[str] | None = None,
    spellings: str | Mapping[str, str] = "refuse",
    name: str = "frame",
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table's columns as numbers, beside its clients and a constant response; and what is to be remembered of them.

    See :func:`.column_federation.column_federation`.
    """
    df = as_table(df)
    names = list(outline(df, client, columns).columns)
    if client in names:
        raise UserError(f"column {client!r} names the clients: a model cannot read it; drop it from columns")
    if not names:
        raise UserError(f"the table has no column beside {client!r}: a model has nothing to read")
    if not len(df):
        raise UserError("the table has no rows")
    warn_of_codes(df, names)
    refuse_text(df, names)
    note_quantities(df, names)
    text = [column for column in names if levels_of(df[column]) is not None]
    df = one_spelling(df, (client, *text), spellings)
    design = outline(df, client, names)
    wide = coded(df, design).assign(**{client: df[client].to_numpy(), NO_RESPONSE: 0.0})
    wide.attrs[CHECKED] = [*names, NO_RESPONSE]
    spread = spread_of(wide, [column for column in names if column not in design.level_names])
    facts = {"data": name, "columns": names, "levels": dict(design.level_names), "client": client, "spread": spread}
    return wide, facts


def coded(df: pd.DataFrame, design: ColumnDesign, absent: Collection[str] = ()) -> pd.DataFrame:
    """Columns of a table as numbers, in the order of a design.

    Args:
        df: the table.
        design: whose columns, and what their codes represent.
        absent: columns that the table may lack; they are 0 then.

    Raises:
        UserError: for a column that is not there, lacks values, is no longer numbers, or has a level that is new.
    """
    import pandas as pd

    df = as_table(df)
    numbers: dict[str, Any] = {}
    for name in design.columns:
        if name in absent and name not in df.columns:
            numbers[name] = np.zeros(len(df))
            continue
        column = one_column(df, name)
        numbers[name] = _codes(column, name, design.level_names.get(name))
    return pd.DataFrame(numbers, index=df.index)


def _codes(column: pd.Series, name: str, levels: Sequence[str] | None) -> np.ndarray:
    if levels is None:
        check_column(column, name)
        return np.asarray(column.to_numpy(dtype=np.float64))
    if missing := int(column.isna().sum()):
        raise UserError(f"column {name!r} has {missing} missing value{'s' * (missing != 1)}: fill or drop these rows")
    places = {level: float(k) for k, level in enumerate(levels)}
    text = column.astype(str)
    if strange := sorted(set(text) - set(places)):
        raise UserError(f"column {name!r} holds {strange[0]!r}, a level that is not known; known: {', '.join(levels)}")
    return text.map(places).to_numpy(dtype=np.float64)


def _client_column(df: pd.DataFrame, client: str) -> None:
    if not isinstance(client, str) or client not in df.columns:
        present = ", ".join(map(repr, df.columns[:8]))
        raise UserError(f"the table has no column {client!r} that names the clients; it has {present}")
    one_column(df, client)
