"""A table of named columns as the arrays of a federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError, unknown
from .category_columns import category_levels, encoded_columns, truth_columns
from .client_names import client_names, refuse_totals
from .frames import check_present, check_table
from .labels import targets_and_labels
from .pool import Task
from .reading.frames import note_quantities, refuse_text, warn_of_codes
from .row_weights import row_weights
from .spellings import one_spelling

if TYPE_CHECKING:
    import pandas as pd

#: fewer rows may have consecutive whole numbers by chance
LEAST_NUMBERED = 10


@dataclass(frozen=True)
class FrameArrays:
    """What a table holds for a federation.

    Attributes:
        x: inputs, (n, inputs) in float64.
        y: responses in float64, or the classes' numbers, (n,).
        client: the name of each row's client, (n,).
        task: what the targets are.
        labels: names of the classes, in the order of their numbers; none of responses.
        remembered: what a prediction's table is read by: "columns", "categories" with their levels, "truths",
            which are True and False, "client" and "response", the columns of both, and "labels".
        weights: of the rows, (n,) in float64; None for one each.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray
    task: Task
    labels: list[str]
    remembered: dict[str, Any]
    weights: np.ndarray | None = None


def frame_arrays(
    df: pd.DataFrame, client: str, y: str, x: Sequence[str] | None, task: Task | None,
    spellings: str | Mapping[str, str] = "refuse", weights: str | None = None,
) -> FrameArrays:  # fmt: skip
    """Inputs, response and clients of a table, checked.

    Args:
        df: the table.
        client, y, x: names of its columns; ``x=None`` takes all others.
        task: as was said; None by the type of the response.
        spellings: of names and levels that are spelled alike.
        weights: name of the column that says for how many rows each one stands; None for one each.

    Raises:
        UserError: for columns that are not there, lack values or may be two things.
    """
    check_table(df)
    if isinstance(x, str):
        raise UserError(f"x is a list of columns: x=[{x!r}]")
    if not df.columns.is_unique:
        raise UserError("the table has two columns of one name")
    columns = [name for name in df.columns if name not in (client, y, weights)] if x is None else list(x)
    for name in (client, y, *columns, *([] if weights is None else [weights])):
        if name not in df.columns:
            raise unknown("column", name, map(str, df.columns))
        check_present(df, name, "the table")
    if not columns:
        raise UserError("a federation needs at least one input column")
    refuse_totals(client_names(df[client], f"column {client!r}"), f"column {client!r}")
    for name, role in ((y, "is the response"), (client, "names the clients"), (weights, "has the weights")):
        if name in columns:
            raise UserError(f"column {name!r} {role}, and cannot be an input too: leave it out of x")
    if y == client:
        raise UserError(f"column {y!r} names the clients, and cannot be the response too")
    if weights in (y, client):
        raise UserError(f"column {weights!r} has the weights, and cannot be the response or name the clients too")
    if x is None:
        _refuse_row_numbers(df, columns)
    refuse_text(df, [*columns, y])
    note_quantities(df, columns)
    warn_of_codes(df, [*columns, y])
    df = one_spelling(df, (client, y, *category_levels(df, columns)), spellings)
    who, levels = client_names(df[client], f"column {client!r}"), category_levels(df, columns)
    response, task, labels = targets_and_labels(df[y], task, f"column {y!r}")
    return FrameArrays(
        x=encoded_columns(df, columns, levels, "the table"),
        y=response if labels else response.astype(np.float64),
        client=who, task=task, labels=labels,
        remembered={
            "columns": columns, "categories": levels, "client": client, "response": y, "labels": labels,
            "truths": truth_columns(df, columns),
        },
        weights=None if weights is None else row_weights(df[weights], len(df), f"column {weights!r}"),
    )  # fmt: skip


def _refuse_row_numbers(df: pd.DataFrame, columns: Sequence[str]) -> None:
    """Refuses columns that only count rows, which are inputs where no one has named the inputs."""
    for name in columns:
        numbers = df[name]
        if len(df) < LEAST_NUMBERED or numbers.dtype.kind not in "iu":
            continue
        if numbers.is_unique and int(numbers.max()) - int(numbers.min()) == len(df) - 1:
            raise UserError(f"column {name!r} numbers the rows: name the inputs without it, x=[...]")
