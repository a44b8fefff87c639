"""A reader as json, and back, without a row: levels, means and spreads, from which a formula makes the same columns.

A table of a few rows that has every level, and numbers of the means and spreads, teaches the formula's transforms what
the fitted table did (as it does at the sites of a study). Whether it has is tried on the fitted table before anything
is written: transforms that remember more of the rows, such as a spline's knots, are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ..spellings import Spellings
from . import gate
from .column_types import ColumnTypes, typed
from .columns import random_terms
from .groups import Groups
from .literals import category_columns, in_listed_order
from .parsed import Formula
from .rank import IndependentColumns
from .reader import Reader
from .row_numbers import RowColumns
from .smooth import SmoothBasis

if TYPE_CHECKING:
    import pandas as pd

#: rows on which both readers are compared, and how closely their columns agree, relative to the largest entry
ROWS, TOLERANCE = 1000, 1e-10
#: of a reader's fields, arrays
ARRAYS = ("centre", "scale", "combination", "correlation")


def written(reader: Reader, df: pd.DataFrame, client: str) -> dict[str, Any] | None:
    """A reader as json values; None where sums and levels do not make it again.

    Args:
        reader: of the fit.
        df: the fitted table.
        client: its clients' column.
    """
    terms = gate.parse(reader.formula)
    names = sorted(terms.predictors)
    whole = df.dropna(subset=names) if names else df
    columns = typed(whole, terms, names)
    cut = category_columns(terms)
    spread = {
        name: [float(columns[name].mean()), float(columns[name].std(ddof=0))]
        for name in names if name in reader.types.numbers and name not in cut
    }  # fmt: skip
    levels = {name: _levels(reader, columns[name], name) for name in names if name not in spread}
    record = {
        "formula": reader.formula, "client": client, "spread": spread, "levels": levels,
        "dtypes": {name: str(columns[name].dtype) for name in names if columns[name].dtype.kind in "biuf"},
        "seen": {name: list(map(_plain, values)) for name, values in reader.types.levels.items()},
        "numbers": sorted(reader.types.numbers), "truths": sorted(reader.types.truths), "extras": list(reader.extras),
        "more": asdict(reader.more), "means": dict(reader.means), "spellings": asdict(reader.spellings),
        "places": {name: getattr(reader.places, name) for name in ("within", "outer", "homes")},
        "independent": _independent(reader.independent),
        "limits": {kind: [basis.lower, basis.upper] for kind, basis in reader.smooths.items()},
    }  # fmt: skip
    some = whole.iloc[:: max(1, len(whole) // ROWS)]
    try:
        again = read(record)
        same = all(
            _same(array, other)
            for make in ("effects", "all_fixed")
            for array, other in zip(getattr(reader, make)(some), getattr(again, make)(some), strict=True)
        )
    except UserError:  # of numbers that such a table has and the fitted one has not
        return None
    return record if same else None


def read(record: Mapping[str, Any]) -> Reader:
    """The reader that :func:`written` wrote.

    Raises:
        UserError: for a record from which the formula's columns cannot be made.
    """
    terms = gate.parse(record["formula"])
    levels, table = terms.levels(record["client"]), _table(terms, record)
    # The response is read of other tables by itself.
    right = gate.parse(terms.text.partition("~")[2])
    made = gate.evaluate(right, table)
    if made.common is None or made.group is None:
        raise UserError(f"the formula {record['formula']!r} has no fixed effects, or no random ones")
    independent = record["independent"]
    if independent is not None:
        arrays = {name: np.array(independent[name], dtype=float) for name in ARRAYS}
        kept = tuple(independent["kept"])
        arrays["combination"] = arrays["combination"].reshape(-1, len(kept))
        independent = IndependentColumns(tuple(independent["names"]), kept, **arrays)
    levels_seen = {name: tuple(values) for name, values in record["seen"].items()}
    types = ColumnTypes(frozenset(record["numbers"]), levels_seen, frozenset(record["truths"]))
    return Reader(
        made, random_terms(terms, levels, made, table), tuple(record["extras"]), RowColumns(**record["more"]),
        record["formula"], Groups(levels, **record["places"]), independent, types,
        Spellings(**record["spellings"]), record["means"],
        {kind: SmoothBasis(smooth, *map(float, record["limits"][kind])) for kind, smooth in levels.smooths.items()},
        {name: (mean, sd) for name, (mean, sd) in record["spread"].items() if name in types.numbers},
    )  # fmt: skip


def _table(terms: Formula, record: Mapping[str, Any]) -> pd.DataFrame:
    """A table with every level, and numbers of such means and spreads."""
    import pandas as pd

    rows = 2 * max([2, *(len(levels) for levels in record["levels"].values())])
    table: dict[str, Any] = {}
    for name in sorted(terms.predictors | terms.places):
        if name in record["spread"]:
            mean, sd = record["spread"][name]
            table[name] = np.tile([mean - sd, mean + sd], rows // 2)
        elif name in record["levels"]:
            levels = record["levels"][name]
            values = (levels * rows)[:rows]
            dtype = record["dtypes"].get(name)
            table[name] = np.array(values, dtype=dtype) if dtype else pd.Categorical(values, levels, ordered=True)
        else:
            table[name] = ["one", "two"] * (rows // 2)
    return in_listed_order(pd.DataFrame(table), terms)


def _levels(reader: Reader, column: pd.Series, name: str) -> list[Any]:
    """A column's levels, in the order of the fit's coding where that is known, else sorted."""
    for term in reader.read.common.terms.values():
        for component in getattr(term, "components", ()):
            if component.kind == "categoric" and component.name == name:
                return list(map(_plain, component.levels))
    if hasattr(column, "cat"):
        return list(map(_plain, column.cat.remove_unused_categories().cat.categories))
    return list(map(_plain, sorted(column.unique(), key=lambda value: (str(type(value)), value))))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _independent(columns: IndependentColumns | None) -> dict[str, Any] | None:
    if columns is None:
        return None
    arrays = {name: np.asarray(getattr(columns, name)).tolist() for name in ARRAYS}
    return {"names": list(columns.names), "kept": [int(k) for k in columns.kept], **arrays}


def _same(first: np.ndarray | None, other: np.ndarray | None) -> bool:
    if first is None or other is None:
        return first is other
    size = np.abs(first).max(axis=0, initial=0.0)
    return first.shape == other.shape and bool((np.abs(first - other) <= TOLERANCE * (1 + size)).all())
