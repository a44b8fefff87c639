"""Made-up files of a study's sites, from its data dictionary alone: for trials without anybody's data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hierfl.data.federated.array_data import ArrayData
from hierfl.data.federated.column_data import ColumnData
from hierfl.data.federated.dictionary import Column
from hierfl.data.federated.formula_data import FormulaData
from hierfl.data.federated.model_data import ModelData
from hierfl.data.formula.trials import trials_columns
from hierfl.errors import UserError
from hierfl.responses.base import Response

from .made_up_model import simulated
from .study import Study

#: rows of a group inside a site, about
INSIDE = 5


def make_up_files(study: Study, folder: Path, rows: int, seed: int = 0) -> dict[str, Path]:
    """A file for each site on the roster.

    Args:
        study: what was agreed on.
        folder: where they are written.
        rows: of each site.
        seed: of all of it.

    Raises:
        UserError: for a response of which no values can be made up.
    """
    return {client: make_up_file(study, folder, client, j, rows, seed) for j, client in enumerate(study.clients)}


def make_up_file(study: Study, folder: Path, client: str, position: int, rows: int, seed: int = 0) -> Path:
    """One site's file, see :func:`make_up_files`; its path.

    Args:
        study: what was agreed on.
        folder: where it is written.
        client: the site's name.
        position: its number, by which its group of sites and its random numbers go.
        rows: of it.
        seed: of all files.
    """
    rng = np.random.default_rng((seed, position))
    if isinstance(study.data, ArrayData):
        path = folder / f"{client}.npz"
        np.savez(path, **_arrays(study.data, rows, rng))
        return path
    if isinstance(study.data, ModelData):
        _simulated(study, rows, rng).to_csv(folder / f"{client}.csv", index=False)
        return folder / f"{client}.csv"
    if not isinstance(study.data, FormulaData | ColumnData):
        raise UserError(f"nothing is made up for data of {type(study.data).__name__}")
    table, patient = _table(study.data, position, rows, rng), study.data.patient
    if patient and patient not in table:
        table[patient] = [f"p{k}" for k in range(rows)]
    table.to_csv(folder / f"{client}.csv", index=False)
    return folder / f"{client}.csv"


def _simulated(study: Study, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Columns that a plain model reads; what it observes is drawn from it."""
    assert isinstance(study.data, ModelData)
    columns = {name: study.data.dictionary.columns[name] for name in study.data.columns}
    table = pd.DataFrame({name: values_of(column, rows, rng) for name, column in columns.items()})
    return simulated(study, table, int(rng.integers(2**31)))


def _arrays(data: ArrayData, rows: int, rng: np.random.Generator) -> dict[str, Any]:
    """Noise of the declared shape, and labels or numbers."""
    arrays: dict[str, Any] = {}
    for part, n in (("train", rows), ("test", max(rows // 4, 2))):
        shape = (n, *data.inputs_shape)
        arrays[f"x_{part}"] = (
            rng.integers(0, 256, shape, dtype=np.uint8) if data.images else rng.normal(size=shape).astype(np.float32)
        )
        arrays[f"y_{part}"] = (
            rng.permutation(np.arange(n) % data.classes) if data.classes else rng.normal(size=n).astype(np.float32)
        )
    return arrays


def _table(data: FormulaData | ColumnData, site: int, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """One site's columns."""
    if isinstance(data, ColumnData):
        return pd.DataFrame({name: values_of(data.dictionary.columns[name], rows, rng) for name in (*data.x, data.y)})
    formula = data.formula
    columns = {name: values_of(formula.columns[name], rows, rng) for name in sorted(formula.used)}
    if (outer := formula.levels.outer) and not formula.levels.crossed:  # a site is in one group of sites
        levels = formula.columns[outer].levels
        columns[outer] = np.full(rows, levels[site % len(levels)], dtype=object)
    trials = trials_columns(formula.formula)
    for name in sorted(set(formula.terms.response or ()) - trials):
        columns[name] = response_of(formula.response, name, formula.columns[name], rows, rng)
        for other in trials:  # no more successes than trials
            columns[other] = np.maximum(columns[other], 1) + (
                columns[name] if formula.columns[name].kind == "whole" else 0
            )
    columns |= _beside(formula.more.names, formula.columns, rows, rng)
    return pd.DataFrame(columns)


def _beside(
    names: Mapping[str, str], columns: Mapping[str, Column], rows: int, rng: np.random.Generator
) -> dict[str, Any]:
    """What rows have beside their response: standard errors, events, weights."""
    columns_beside: dict[str, Any] = {}
    for role, name in names.items():
        if role == "event":
            columns_beside[name] = (rng.random(rows) < 0.7).astype(int)
        elif role == "weight":
            columns_beside[name] = np.clip(rng.integers(1, 4, rows), columns[name].least, columns[name].most)
        else:
            columns_beside[name] = np.clip(rng.uniform(0.5, 1.5, rows), columns[name].least, columns[name].most)
    return columns_beside


def values_of(column: Column, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Values that a column may have, (rows,): of its kind, in its range, of its levels."""
    if column.kind == "category":
        return np.array(column.levels, dtype=object)[rng.permutation(np.arange(rows) % len(column.levels))]
    if column.kind == "name":
        return np.array([f"g{k // INSIDE}" for k in range(rows)], dtype=object)
    if column.kind == "flag":
        return rng.permutation(np.arange(rows) % 2)
    least, most = column.least, column.most
    if column.kind == "whole":
        low = int(np.ceil(least)) if least is not None else (0 if most is None else int(np.floor(most)) - 10)
        high = int(np.floor(most)) if most is not None else low + 10
        return rng.integers(low, high + 1, rows)
    if least is not None and most is not None:
        return rng.uniform(least, most, rows)
    above = rng.exponential(size=rows)
    if least is not None:
        return least + above
    return most - above if most is not None else rng.normal(size=rows)


def response_of(response: type[Response], name: str, column: Column, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Values of a response that its family and its column allow, (rows,).

    Raises:
        UserError: where none of those that are tried do.
    """
    shared = np.clip(rng.normal(0, 0.3), -0.6, 0.6)  # the site's own
    least = column.least if column.least is not None else -np.inf
    most = column.most if column.most is not None else np.inf
    tried = [
        values_of(column, rows, rng), rng.normal(shared, 1, rows), np.exp(rng.normal(shared, 0.5, rows)),
        rng.poisson(np.exp(0.5 + shared), rows), rng.beta(2 + shared, 2, rows), rng.permutation(np.arange(rows) % 2),
        1 + rng.poisson(np.exp(0.5 + shared), rows),
    ]  # fmt: skip
    if column.kind in ("category", "flag"):
        return tried[0]
    for values in tried if column.ranged else [*tried[1:], tried[0]]:
        inside = np.clip(values, least, most)
        inside = np.round(inside) if column.kind == "whole" else inside
        try:
            response.check(name, inside.astype(float))
        except UserError:
            continue
        if not column.misfit(pd.Series(inside)) and len(np.unique(inside)) > 1:
            return inside
    raise UserError(f"no values of {name!r} can be made up that its family and its range allow: look at study.toml")
