"""A table's columns by name, as a federation for a plain Pyro model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..errors import UserError
from .column_design import ColumnDesign
from .federation import Federation

if TYPE_CHECKING:
    import pandas as pd


def column_federation(
    df: pd.DataFrame,
    client: str,
    columns: Collection[str] | None = None,
    spellings: str | Mapping[str, str] = "refuse",
    name: str = "frame",
) -> tuple[Federation, ColumnDesign]:
    """A federation of a table's columns, and which is which.

    Numbers and truth values are float64. Text is coded 0, 1, ... in sorted order, a pandas Categorical in its own.

    Args:
        df: one row per observation.
        client: the column that names the clients.
        columns: those that a model reads, which must be complete; None for all others than ``client``.
        spellings: of names of clients and levels that differ in blanks, capitals, zeros and the like alone: "refuse",
            "join" or "keep", or by column {"ward": "join"}.
        name: what to call the data.

    Returns:
        The federation; ``about["columns"]`` and ``about["levels"]`` are those of the design.

    Raises:
        UserError: for a column that is not there, lacks values, or holds text that may be numbers.
    """
    made = Federation.from_columns(df, client=client, columns=columns, spellings=spellings, name=name)
    return made, design_of(made)


def design_of(federation: Federation) -> ColumnDesign:
    """The design of a federation that :func:`column_federation` has made.

    Raises:
        UserError: for another federation.
    """
    if "columns" not in federation.about or "levels" not in federation.about:
        raise UserError(
            "a plain model reads columns by name, and this federation has none: Federation.from_columns(df, "
            "client='COLUMN') makes one that has"
        )
    return ColumnDesign.from_columns(federation.about["columns"], federation.about["levels"])
