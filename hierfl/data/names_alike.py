"""Words of arrays, labels and names of clients: checked as those of a table's columns are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .client_names import client_names
from .labels import one_column
from .reading.disguise import LEAST_ROWS, LEVELS_SHARE, NUMERIC_MAJORITY, POINTS
from .spellings import Spellings, joined

if TYPE_CHECKING:
    from .pool import Task

#: what becomes of a missing value where an array is made text
MISSING_AS_TEXT = frozenset(("", "nan", "NaN", "<NA>", "NaT"))


def names_of_arrays(
    client: Any, client_test: Any, name: str, spellings: str = "refuse"
) -> tuple[np.ndarray, np.ndarray | None]:
    """Clients of the training and of the test rows as text, in one spelling each.

    Args:
        client, client_test: of each row, (n,) or (n, 1); the latter None where there are no test rows.
        name: of the data, for messages.
        spellings: as of :meth:`hierfl.data.spellings.Spellings.from_choice`.

    Raises:
        UserError: for names that are spelled alike, where they are refused, and missing ones that have become text.
    """
    names = [client_names(_flat(client), f"{name}: client")]
    if client_test is not None:
        names.append(client_names(_flat(client_test), f"{name}: client_test"))
    read = _one_spelling(names, "client", spellings)
    return read[0], read[1] if len(read) > 1 else None


def words_of_arrays(y: Any, y_test: Any, task: Task | None, what: str, spellings: str = "refuse") -> tuple[Any, Any]:
    """Targets of the training and of the test rows, whose words are in one spelling each; others as they are.

    Args:
        y, y_test: targets, (n,) or (n, 1); the latter None where there are no test rows.
        task: as was said; None by the type.
        what: holds them, for messages.
        spellings: as for :func:`names_of_arrays`.

    Raises:
        UserError: for words that are spelled alike, missing ones, numbers that are fractions, and a word a row.
    """
    given = one_column(y, what)
    if given.dtype.kind != "U":
        return y, y_test
    if task != "classification":
        _refuse_no_labels(given, what)
    columns = [given] if y_test is None else [given, one_column(y_test, what)]
    if columns[-1].dtype.kind != "U":
        columns.pop()
    read = _one_spelling(columns, "y", spellings)
    return read[0], read[1] if len(read) > 1 else y_test


def _one_spelling(columns: Sequence[np.ndarray], what: str, spellings: str) -> list[np.ndarray]:
    import pandas as pd

    for column in columns:
        if missing := sorted(MISSING_AS_TEXT & set(np.unique(column).tolist())):
            raise UserError(
                f"{what} holds {missing[0]!r}, as a missing value reads when it is made text: drop these rows, or "
                "write another word"
            )
    whole = pd.Series(np.concatenate(columns).astype(object), name=what)
    read = joined(whole, Spellings.from_choice(spellings)[what]).to_numpy().astype(str)
    return np.split(read, np.cumsum([len(column) for column in columns])[:-1])


def _refuse_no_labels(y: np.ndarray, what: str) -> None:
    """Refuses text that is not surely the names of classes."""
    labels = np.unique(y).tolist()
    shown, remedy = ", ".join(map(repr, labels[:3])), "or task='classification' for labels"
    fractions = sum(_is_fraction(label) for label in labels)
    if fractions and fractions >= NUMERIC_MAJORITY * len(labels):
        raise UserError(f"{what} holds numbers as text, {shown}: say y.astype(float) for responses, {remedy}")
    if len(y) >= LEAST_ROWS and len(labels) >= LEVELS_SHARE * len(y):
        raise UserError(f"{what} holds {len(labels)} different words in {len(y)} rows, {shown}: drop it, {remedy}")


def _is_fraction(label: str) -> bool:
    text = label.replace(",", ".")
    return POINTS.plain(text) is not None and not text.strip().lstrip("+-").isdigit()


def _flat(client: Any) -> Any:
    """Clients as one column."""
    if getattr(client, "ndim", 1) == 2 and client.shape[1] == 1:
        return np.asarray(client).reshape(-1)
    if np.ndim(client) > 1:
        raise UserError(f"client has shape {np.shape(client)}: it is one column, with a name for each row")
    return client
