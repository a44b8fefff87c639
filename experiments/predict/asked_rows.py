"""Rows of a json object, as those of a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hierfl.data.client_names import client_names
from hierfl.errors import UserError, unknown

from .new_rows import NewRows


def rows_of(entries: Mapping[str, Any], keys: Collection[str]) -> NewRows:
    """Rows of a table, ``rows``: [{column: value}]; or arrays, ``x``, ``y`` and ``client``: a list for each row.

    Args:
        entries: the object.
        keys: that it may have.

    Raises:
        UserError: for another key, both or none of ``rows`` and ``x``, and lists that are no rows.
    """
    for key in entries:
        if key not in keys:
            raise unknown("key", key, sorted(keys))
    if ("rows" in entries) == ("x" in entries):
        raise UserError("say one of rows, a list of objects with the table's columns, and x, a list of inputs")
    owner = entries.get("client")
    if "rows" in entries:
        if isinstance(owner, list):
            raise UserError("rows name their clients in their own column; client is one name for all of them")
        return NewRows(_table(entries["rows"]), None)
    x = _array(entries["x"], "x")
    names = client_names(owner, "client") if isinstance(owner, list) else None
    y = _array(entries["y"], "y") if entries.get("y") is not None else None
    for name, values in (("client", names), ("y", y)):
        if values is not None and len(values) != len(x):
            raise UserError(f"there are {len(x)} x, and {len(values)} {name}")
    return NewRows(x, names, y)


def _table(rows: Any) -> Any:
    import pandas as pd

    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise UserError("rows is a list of objects, one for each row, with the table's columns")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        if strange := [value for row in rows if isinstance(value := row.get(name), list | dict)]:
            kind = "a list" if isinstance(strange[0], list) else "an object"
            raise UserError(f"column {name!r} holds {kind}: a value is a number, text or truth value")
    return pd.DataFrame(rows, columns=columns)


def _array(values: Any, name: str) -> np.ndarray:
    if not isinstance(values, list) or not values:
        raise UserError(f"{name} is a list with an entry for each row")
    try:
        return np.array(values)
    except ValueError as error:
        raise UserError(f"{name} has entries of several shapes") from error
