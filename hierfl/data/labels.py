"""Labels as a user has them: words, truth values, any whole numbers. Classes are numbered in sorted order."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, get_args

import numpy as np
from torch import Tensor

from ..errors import UserError, unknown
from .pool import Task
from .raw_values import REMEDIES, plain_array

#: so many different whole numbers may be labels whatever the number of rows
FEW_LABELS = 10
#: of more, each has at least so many rows on average, where nothing else says that they are labels
ROWS_EACH = 10
#: so many different whole numbers, written as floats, may be labels or responses
FEW_FLOATS = 20


def one_column(values: Any, what: str) -> np.ndarray:
    """Targets as a one-dimensional array (n,), of numbers, truth values or words.

    Args:
        values: (n,) or (n, 1).
        what: they are, for messages.

    Raises:
        UserError: for one-hot rows, missing values, dates and other objects.
    """
    y = values if isinstance(values, Tensor | np.ndarray) else plain_array(values, what)
    if y.ndim == 0:
        shown = "a generator: make a list of it" if hasattr(values, "__next__") else repr(values)
        raise UserError(f"{what} is {shown}: it has a value for each row")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.reshape(-1)
    if y.ndim == 2:
        raise UserError(
            f"{what} has shape {tuple(y.shape)}, and one target is a number or a word: "
            "one-hot rows become labels by .argmax(1)"
        )
    y = plain_array(y, what)
    if y.dtype.kind == "O":
        y = _of_objects(y, what)
    if y.dtype.kind in "S":
        y = np.char.decode(y, "utf-8")
    if y.dtype.kind not in "biufU":
        way = REMEDIES[y.dtype.kind] if y.dtype.kind in "Mm" else "make them so first"
        raise UserError(f"{what} holds {y.dtype}, and targets are numbers or words: {way}")
    return y.astype(y.dtype.newbyteorder("="))


def _of_objects(y: np.ndarray, what: str) -> np.ndarray:
    values = y.tolist()
    if any(_is_missing(value) for value in values):
        raise UserError(f"{what} has missing values: drop these rows first")
    kinds = {_kind(value) for value in values}
    if kinds <= {str}:
        return y.astype(str)
    if kinds <= {bool}:
        return y.astype(bool)
    if kinds <= {int, float}:
        return np.array(values)
    if kinds == {Decimal}:
        raise UserError(f"{what} holds Decimal: make them floats by .astype(float)")
    names = sorted(kind.__name__ for kind in kinds)
    raise UserError(f"{what} holds {' and '.join(names)}, and targets are numbers, or words, all of one type")


def _is_missing(value: object) -> bool:
    """Whether it is None, NaN, or what pandas writes for no value."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, Real) and value != value)
    )


def _kind(value: object) -> type:
    """The type of a target, NumPy's as Python's."""
    if isinstance(value, bool | np.bool_):
        return bool
    kinds = ((str, str), (Integral, int), (Real, float))
    return next((kind for family, kind in kinds if isinstance(value, family)), type(value))


def targets_and_labels(y: Any, task: Task | None, what: str) -> tuple[np.ndarray, Task, list[str]]:
    """Targets as numbers, what they are, and the names of the classes.

    Args:
        y: as the user has it, (n,) or (n, 1).
        task: as was said; None by the type: words, truth values and whole numbers are labels, floats are responses.
        what: holds them, for messages.

    Returns:
        Responses, or the classes' numbers, (n,); the task; and in the order of these numbers their names, none for
        responses.

    Raises:
        UserError: where the type does not say what they are, or is not that of the task.
    """
    if task is not None and task not in get_args(Task):
        raise unknown("task", task, get_args(Task))
    y = one_column(y, what)
    kind = y.dtype.kind
    if task == "regression":
        if kind == "U":
            raise UserError(f"{what} holds no numbers, so it cannot be the response of a regression")
        return y, task, []
    whole = kind in "iu" or (kind == "f" and bool(np.isfinite(y).all()) and bool((y == np.floor(y)).all()))
    if kind == "f":
        if task is None:
            if whole and 1 < (count := len(np.unique(y))) <= FEW_FLOATS and count * 2 <= len(y):
                raise UserError(
                    f"{what} holds floats of {count} whole values ({_some(y)}): labels or responses? "
                    "task='classification' or task='regression' says it"
                )
            return y, "regression", []
        if not whole:
            raise UserError(
                f"{what} holds {y[(y != np.floor(y)) | ~np.isfinite(y)][0]}, and labels are whole numbers or words"
            )
        y = y.astype(np.int64)
    values, numbers = np.unique(y, return_inverse=True)
    if kind == "b":
        values, numbers = np.array([False, True]), y.astype(np.int64)
    complete = kind in "iuf" and bool(np.array_equal(values, np.arange(len(values))))
    if task is None and kind in "iu" and not complete and len(values) > max(FEW_LABELS, len(y) / ROWS_EACH):
        raise UserError(
            f"{what} holds {len(values)} different whole numbers ({_some(y)}) in {len(y)} rows: labels or counts? "
            "task='classification' or task='regression' says it"
        )
    return numbers.astype(np.int64), "classification", [str(value) for value in values.tolist()]


def _some(y: np.ndarray) -> str:
    """The first few values."""
    values = np.unique(y)
    return ", ".join(f"{value:g}" for value in values[:4]) + ", ..." * (len(values) > 4)


def are_numbers(labels: Sequence[str]) -> bool:
    """Whether these are the names of classes 0, 1, ..., which need no list."""
    return list(labels) == [str(k) for k in range(len(labels))]


def known_labels(y: Any, labels: Sequence[str], what: str) -> np.ndarray:
    """Labels of further rows, as the classes' numbers, (n,).

    Args:
        y: the names of classes as they were given, (n,) or (n, 1); where all names are words, also their numbers.
        labels: all names, in the order of the numbers.
        what: holds them, for messages.

    Raises:
        UserError: for a label that is not among them.
    """
    y = one_column(y, what)
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.floor(y)).all():
        y = y.astype(np.int64)
    numbers = {name: k for k, name in enumerate(labels)}
    if y.dtype.kind == "b" and set(labels) <= {"0", "1"}:
        y = y.astype(np.int64)
    if y.dtype.kind in "iu" and not any(name.lstrip("-").isdigit() for name in labels):
        numbers = {str(k): k for k in range(len(labels))}
    names = [str(value) for value in y.tolist()]
    strange = next((name for name in names if name not in numbers), None)
    if strange is not None:
        if are_numbers(labels):
            raise UserError(f"{what} holds {strange}: labels are whole numbers from 0 to {len(labels) - 1}")
        shown = ", ".join(labels[:8]) + ", ..." * (len(labels) > 8)
        raise UserError(f"{what} holds {strange!r}, which is no label of the federation; known: {shown}")
    return np.array([numbers[name] for name in names], dtype=np.int64)
