"""Columns of a table as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError, unknown
from .client_names import client_names
from .pool import Task
from .reading.frames import refuse_text

if TYPE_CHECKING:
    import pandas as pd


def frame_arrays(
    df: pd.DataFrame, client: str, y: str, x: Sequence[str], task: Task | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Task, list[str]]:
    """Inputs, response, client column, task and the labels' names of a table, checked."""
    if isinstance(x, str):
        raise UserError(f"x is a list of columns: x=[{x!r}]")
    if not df.columns.is_unique:
        raise UserError("the table has two columns of one name")
    for column in (client, y, *x):
        if column not in df.columns:
            raise unknown("column", column, map(str, df.columns))
        missing = int(df[column].isna().sum())
        if missing:
            raise UserError(f"column {column!r} has {missing} missing value{'s' * (missing != 1)}")
    refuse_text(df, [*x, y])
    words = [column for column in x if df[column].dtype.kind not in "biuf"]
    if words:
        raise UserError(f"column {words[0]!r} holds no numbers; encode it first (for example with pandas.get_dummies)")
    if not x:
        raise UserError("a federation needs at least one input column")
    response = df[y]
    if task is None:
        task = "regression" if response.dtype.kind == "f" else "classification"
    if task == "regression" and response.dtype.kind not in "biuf":
        raise UserError(f"column {y!r} holds no numbers, so it cannot be the response of a regression")
    inputs, who = df[list(x)].to_numpy(dtype=np.float64), client_names(df[client], f"column {client!r}")
    if task == "regression":
        return inputs, response.to_numpy(dtype=np.float64), who, task, []
    words = response.to_numpy()
    labels, target = np.unique(words if response.dtype.kind in "biuf" else words.astype(str), return_inverse=True)
    return inputs, target, who, task, [str(label) for label in labels]
