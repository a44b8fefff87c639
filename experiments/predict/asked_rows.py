"""Rows of a json object, as those of a file."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from hierfl.data.client_names import client_names
from hierfl.errors import UserError, unknown

from .new_rows import NewRows

#: rows of a request: its answer is made in memory, and a single one is computed at a time
MAX_ROWS = 20_000
#: half of a letter of UTF-16, escaped
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parsed(content: bytes) -> Any:
    """A request's json.

    Args:
        content: of the request, in UTF-8, UTF-16 or UTF-32.

    Raises:
        UserError: for what is no json, a key that comes twice in an object, a whole number beyond double precision, and
            text that is no Unicode.
    """
    try:
        text = content.decode(json.detect_encoding(content))
        entries = json.loads(text, object_pairs_hook=_once, parse_int=_whole)
        if _SURROGATE.search(text):  # two of them together are one letter
            json.dumps(entries, ensure_ascii=False).encode()
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"a request is a json object: {error}") from error
    return entries


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different: of two values json keeps the last."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise UserError(f"an object of the request has {counts.most_common(1)[0][0]!r} twice: leave one of them out")
    return entries


def _whole(digits: str) -> int:
    number = int(digits)
    if abs(number) > sys.float_info.max:
        raise UserError(f"a number of the request has {len(digits)} digits, more than double precision reaches")
    return number


def rows_of(entries: Mapping[str, Any], keys: Collection[str]) -> NewRows:
    """Rows of a table, ``rows``: [{column: value}]; or arrays, ``x``, ``y`` and ``client``: a list for each row.

    Args:
        entries: the object.
        keys: that it may have.

    Raises:
        UserError: for another key, both or none of ``rows`` and ``x``, lists that are no rows, and too many rows.
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
    _check_number(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        if strange := [value for row in rows if isinstance(value := row.get(name), list | dict)]:
            kind = "a list" if isinstance(strange[0], list) else "an object"
            raise UserError(f"column {name!r} holds {kind}: a value is a number, text or truth value")
    return pd.DataFrame(rows, columns=columns)


def _array(values: Any, name: str) -> np.ndarray:
    if not isinstance(values, list) or not values:
        raise UserError(f"{name} is a list with an entry for each row")
    _check_number(values)
    try:
        return np.array(values)
    except ValueError as error:
        raise UserError(f"{name} has entries of several shapes") from error


def _check_number(rows: Sequence[Any]) -> None:
    if len(rows) > MAX_ROWS:
        raise UserError(
            f"a request has at most {MAX_ROWS:,} rows, not {len(rows):,}: send several, or a file to hierfl predict"
        )
