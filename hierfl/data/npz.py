"""A pool from an ``.npz`` file."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from ..files import shown
from .arrays import make_pool
from .client_names import client_names
from .pool import PooledDataset
from .readers.npz import read_npz
from .spellings import DIFFERENCE, PAIRS_SHOWN, alike

log = logging.getLogger("hierfl")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("fine_train", "fine_test", "client_train", "client_test")


def load_npz(path: Path, classes: int = 0) -> PooledDataset:
    """A pool from an ``.npz`` file (``~`` is expanded).

    It must hold x_train, y_train, x_test and y_test, and may hold fine_train and fine_test (subclasses), client_train
    and client_test (whose each example is; then ``natural`` is a split). Integer targets are labels, floats are
    responses. uint8 inputs are images (channels last or first); they are divided by 255 and standardised per
    channel, other inputs are used as they are. Object arrays are refused: nothing is ever unpickled.

    Args:
        path: of the file.
        classes: number of labels, where some may be missing in this file; 0 for all those that are there.

    Raises:
        UserError: for a file that is missing, damaged, too large (:func:`hierfl.data.readers.limits.byte_limit`) or no
            ``.npz``, a missing or object array, shapes that do not fit, inputs that are not finite, labels that are
            no 0..K-1.
    """
    others: list[str] = []
    arrays = read_npz(path, ARRAYS, OPTIONAL, others)
    if others:
        listed = ", ".join(others[:PAIRS_SHOWN]) + " and more" * (len(others) > PAIRS_SHOWN)
        known = ", ".join(ARRAYS + OPTIONAL)
        log.warning("%s: arrays that are not used: %s; known: %s", path.name, shown(listed), known)
    if arrays["x_train"].dtype == np.uint8 and arrays["x_train"].ndim == 2:
        log.warning("%s: uint8 rows are read as pixels from 0 to 255; save other numbers, or ids, as int64", path.name)
    required = (arrays.pop(k) for k in ARRAYS)
    pool = make_pool(
        path.stem,
        *required,
        fine_train=arrays.get("fine_train"),
        fine_test=arrays.get("fine_test"),
        client_train=arrays.get("client_train"),
        client_test=arrays.get("client_test"),
        classes=classes,
    )
    columns = [a for a in (pool.client_train, pool.client_test) if a is not None]
    names = {name for column in columns for name in client_names(column, path.name).tolist()}
    if groups := alike(names):
        pairs = "; ".join(" and ".join(map(repr, group)) for group in groups[:PAIRS_SHOWN])
        log.warning("%s: clients %s differ %s, and are kept apart", path.name, pairs, DIFFERENCE)
    return pool
