"""What is refused of arrays that are to be a data set."""

from __future__ import annotations

import numpy as np

from ..errors import UserError
from ..plurals import counted
from .pool import Task

#: whole numbers up to these are exact in float32, and in float64
EXACT_SINGLE, EXACT_DOUBLE = 2**24, 2**53


def distinct_subclasses(
    y_train: np.ndarray, fine_train: np.ndarray, y_test: np.ndarray, fine_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Subclass ids that belong to one label each; where they were counted from 0 in every label, they are made so."""
    pairs = np.stack([np.concatenate([y_train, y_test]), np.concatenate([fine_train, fine_test])])
    distinct, number = np.unique(pairs, axis=1, return_inverse=True)
    if len(np.unique(distinct[1])) == distinct.shape[1]:
        return fine_train, fine_test
    number = number.reshape(-1)
    return number[: len(y_train)], number[len(y_train) :]


def check_subclasses(where: str, marks: np.ndarray) -> None:
    """Refuses subclasses that cannot be distinguished."""
    if marks.dtype.kind not in "biuf":
        raise UserError(f"{where} holds {marks.dtype}, not numbers")
    if marks.dtype.kind == "f" and not np.isfinite(marks).all():
        raise UserError(f"{where} holds values that are NaN or infinite")


def check_inputs(name: str, array: str, x: np.ndarray) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype.kind not in "biuf":
        raise UserError(f"{name}: {array} holds {x.dtype}, not numbers")
    if x.ndim < 2:
        raise UserError(
            f"{name}: {array} has shape {x.shape}; the first dimension counts examples, the rest is one input"
        )
    if 0 in x.shape[1:]:
        raise UserError(f"{name}: {array} has shape {x.shape}: an input without features says nothing")
    if x.dtype == np.uint8:
        return x
    large = max(abs(int(x.min())), abs(int(x.max()))) if x.dtype.kind in "iu" and x.size else 0
    if large > EXACT_DOUBLE:
        raise UserError(f"{name}: {array} holds whole numbers up to {large}, which floats do not tell apart")
    with np.errstate(over="ignore"):  # a number beyond the type is infinite, which is refused
        x = x.astype(np.float64 if x.dtype == np.float64 or large > EXACT_SINGLE else np.float32)
    if not np.isfinite(x).all():
        raise UserError(f"{name}: {array} holds {int((~np.isfinite(x)).sum())} values that are NaN or infinite")
    return x


def check_targets(
    name: str, y_train: np.ndarray, y_test: np.ndarray, task: Task, declared: int = 0
) -> tuple[np.ndarray, np.ndarray, int]:
    """Targets of a data set, and how many labels there are: as many as ``declared``, or all those in ``y_train``.

    Raises:
        UserError: for targets that are no numbers, or labels outside of these.
    """
    for part, y in (("y_train", y_train), ("y_test", y_test)):
        if np.asarray(y).dtype.kind not in "biuf":
            raise UserError(f"{name}: {part} holds {np.asarray(y).dtype}, not numbers")
        if not np.isfinite(y).all():
            raise UserError(f"{name}: {part} holds values that are NaN or infinite")
    if task == "regression":
        with np.errstate(over="ignore"):
            return y_train.astype(np.float64), y_test.astype(np.float64), 0
    both = np.concatenate([y_train, y_test])
    if (both != np.floor(both)).any() or both.min() < 0:
        raise UserError(f"{name}: labels must be whole numbers from 0, not {both.min()}..{both.max()}")
    if declared:
        if strange := int((both >= declared).sum()):
            raise UserError(f"{name}: {counted(strange, 'label', 'is', 'are')} not in the range 0..{declared - 1}")
        return y_train.astype(np.int64), y_test.astype(np.int64), declared
    present = np.unique(y_train)
    classes = int(present[-1]) + 1
    if len(y_test) and int(y_test.max()) >= classes:
        raise UserError(f"{name}: y_test has label {int(y_test.max())}, out of the range 0..{classes - 1} of y_train")
    if len(present) < classes:
        absent = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise UserError(f"{name}: labels must be 0..K-1, but y_train reaches {classes - 1} and lacks {absent}")
    return y_train.astype(np.int64), y_test.astype(np.int64), classes
