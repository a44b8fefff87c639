"""Arrays as a user has them, made one pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..errors import UserError
from .arrays import natural_pool
from .frames import is_table, numeric_columns
from .input_kinds import PICTURE, Inputs, as_pixels, check_scale, inputs_of_kind
from .input_scales import Standardise, warn_of_unscaled
from .labels import are_numbers, known_labels, one_column, targets_and_labels
from .names_alike import names_of_arrays, words_of_arrays
from .pool import PooledDataset, Task
from .raw_values import number_array, precision_of
from .reading.frames import code_among
from .row_weights import row_weights

log = logging.getLogger("hierfl")
#: arrays have no declarations, and numbers such as 9 are mostly numbers
LEAST_CODE = 99
#: what a user of arrays says of inputs that are used as they are
OF_ROWS = (
    "inputs='numbers' standardises it, inputs='ids' says that these are ids, and standardise=False (--standardise no) "
    "that this is meant"
)
OF_PIXELS = (
    "inputs='pixels' takes pixels from 0 to 255, standardise=True (--standardise yes) standardises other numbers, and "
    "standardise=False (--standardise no) says that this is meant"
)
#: of fewer clients a label at one alone is nothing to remark on
MIN_CLIENTS = 3


def given_pool(
    x: Any, y: Any, client: Any, x_test: Any, y_test: Any, client_test: Any, test: float, seed: int, task: Task | None,
    name: str, standardise: Standardise, inputs: Inputs | None,
    spellings: str = "refuse", weights: Any = None,
) -> tuple[PooledDataset, dict[str, Any]]:  # fmt: skip
    """A pool of arrays, and what is to be remembered of them: names of classes, and of columns.

    Args:
        x, y, client, x_test, y_test, client_test, test, seed, task, name, standardise, inputs, spellings, weights: as
            for :meth:`hierfl.data.federation.Federation.from_arrays`.

    Raises:
        UserError: for arrays that do not fit together, or may be two things.
    """
    columns = list(x.columns) if is_table(x) else None
    given = _inputs(x, columns, f"{name}: x")
    read = inputs_of_kind(given, inputs, f"{name}: x")
    _warn_of_codes(read, y, name)
    y, y_test = words_of_arrays(y, y_test, task, f"{name}: y", spellings)
    targets, task, labels = targets_and_labels(y, task, f"{name}: y")
    kept: dict[str, Any] = {} if are_numbers(labels) else {"labels": labels}
    if columns is not None:
        kept["columns"] = columns
    if inputs == "ids" and standardise is True:
        raise UserError(f"{name}: ids are never standardised: leave standardise out")
    if x_test is not None:
        x_test = _like(read, x_test, columns, inputs, f"{name}: x_test")
    if y_test is not None:
        what = f"{name}: y_test"
        y_test = known_labels(y_test, labels, what) if labels else one_column(y_test, what)
    ids = inputs == "ids"
    if ids:  # floats of 53 bits keep each id exactly
        read, x_test = read.astype(np.float64), None if x_test is None else x_test.astype(np.float64)
    who, who_test = names_of_arrays(client, client_test, name, spellings)
    pool = natural_pool(
        read, targets, who, x_test, y_test, who_test, test, seed, task, name, standardise,
        len(labels), numbers=inputs == "numbers" or columns is not None,
        weights=None if weights is None else row_weights(weights, len(read), f"{name}: weights"),
    )  # fmt: skip
    if labels:
        _warn_of_lone_labels(pool, labels, name)
    if inputs is None and standardise == "auto":
        warn_of_unscaled(pool, OF_PIXELS if read.ndim > 2 else OF_ROWS)
    if ids:
        pool = replace(
            pool, x_train=pool.x_train.astype(np.int64), x_test=pool.x_test.astype(np.int64), mean=None, std=None
        )
    return pool, kept


def _warn_of_codes(x: np.ndarray, y: Any, name: str) -> None:
    """Says which numbers may be codes for missing values, such as -999, among few columns and targets."""
    columns = {f"column {k} of x": x[:, k] for k in range(x.shape[1])} if x.ndim == 2 and x.shape[1] < PICTURE else {}
    targets = one_column(y, f"{name}: y")
    for what, column in {**columns, **({"y": targets} if targets.dtype.kind in "iuf" else {})}.items():
        if (code := code_among(column[np.isfinite(column)])) and abs(code[1]) >= LEAST_CODE:
            log.warning("%s: %s %s: drop these rows if it is a missing value", name, what, code[0])


def _warn_of_lone_labels(pool: PooledDataset, labels: Sequence[str], name: str) -> None:
    """Says which labels one client alone has, where that is not so of every label: it may be a slip of a name."""
    assert pool.client_train is not None
    pairs = np.unique(np.stack([pool.y_train.astype(str), pool.client_train.astype(str)]), axis=1)
    clients: dict[int, list[str]] = {}
    for label, client in pairs.T.tolist():
        clients.setdefault(int(label), []).append(client)
    alone = {label: has[0] for label, has in sorted(clients.items()) if len(has) == 1}
    if len(set(pairs[1])) < MIN_CLIENTS or len(alone) > len(clients) / 2:
        return
    shown = [f"label {labels[label]!r} occurs at client {client!r} alone" for label, client in alone.items()]
    if shown:
        log.warning("%s: %s", name, "; ".join(shown[:3]) + (f"; and {len(shown) - 3} more" if len(shown) > 3 else ""))


def _inputs(x: Any, columns: list[Any] | None, what: str) -> np.ndarray:
    return numeric_columns(x, columns, what) if columns is not None and is_table(x) else number_array(x, what)


def _like(read: np.ndarray, x: Any, columns: list[Any] | None, inputs: Inputs | None, what: str) -> np.ndarray:
    """Test inputs as the training inputs are."""
    given = _inputs(x, columns, what)
    if read.dtype == np.uint8:
        pixels = as_pixels(torch.from_numpy(given), what, precision_of(x))
        if pixels.dtype != torch.uint8:
            raise UserError(f"{what} holds pixels that are no whole numbers from 0 to 255, unlike x: round them")
        return pixels.numpy()
    if inputs == "ids":
        return inputs_of_kind(given, "ids", what)
    if given.size and read.size and given.ndim > 1 and np.isfinite(given).all():
        check_scale(torch.from_numpy(given), float(read.min()), float(read.max()))
    return given.astype(read.dtype)
