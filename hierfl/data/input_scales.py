"""Whether a network's inputs are standardised, and by what."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from ..errors import UserError, unknown
from .pool import PooledDataset
from .weighted_moments import weighted_moments

log = logging.getLogger("hierfl")
#: "auto" standardises where a column's scale is far from one
Standardise = bool | Literal["auto"]
#: a column is far from unit scale where its mean or standard deviation is beyond this, or the latter below its inverse
MAX_UNSCALED = 4.0
#: pictures and series are far from it where a channel is, or the root mean square of all numbers is below this
LEAST_SPREAD = 1 / MAX_UNSCALED**2
#: what a user of a file says of inputs that are used as they are
OF_A_FILE = (
    "--standardise yes (standardise=True) standardises it, and --standardise no (standardise=False) says that this is "
    "meant"
)


def standardised(pool: PooledDataset, wanted: Standardise, *, numbers: bool = False) -> PooledDataset:
    """A pool whose inputs are brought to mean 0 and standard deviation 1 over its training rows.

    What has constants already, as images have, stays. "auto" is for rows of numbers, (N, k): where a column is far from
    unit scale, all columns of more than two values are standardised. Whole numbers may be names of tokens or levels:
    they stay, unless they are declared numbers.

    Args:
        pool: the data.
        wanted: True, False or "auto".
        numbers: whether whole numbers are numbers, as in a table whose columns were named as inputs.

    Raises:
        UserError: for another word, and for inputs that stay as they are and are too large.
    """
    if not isinstance(wanted, bool) and wanted not in get_args(get_args(Standardise)[1]):
        raise unknown("value of standardise", wanted, ("True", "False", "auto"))
    if pool.mean is not None:
        return pool
    x = pool.x_train
    weights = pool.train_weights
    if wanted is True:
        mean, std = (values.astype(x.dtype) for values in weighted_moments(x, weights))
        return replace(pool, mean=mean, std=np.where(std > 0, std, 1.0).astype(x.dtype))
    constants = far_constants(x, numbers=numbers, weights=weights) if wanted else None
    if constants is None:
        _refuse_beyond(pool)
        return pool
    return replace(pool, mean=constants[0], std=constants[1])


def _refuse_beyond(pool: PooledDataset) -> None:
    """Refuses inputs that stay as they are, and that float32 does not hold."""
    for x in (pool.x_train, pool.x_test):
        if x.size and x.dtype == np.float64 and (largest := float(np.abs(x).max())) > float(np.finfo(np.float32).max):
            raise UserError(f"{pool.name}: inputs reach {largest:.3g}: give them in another unit, or standardise=True")


def far_constants(
    x: np.ndarray, *, numbers: bool, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean and standard deviation of each column of rows (N, k), 0 and 1 of those that stay; None where all stay.

    Args:
        x: training rows.
        numbers: as for :func:`standardised`.
        weights: of the rows, (N,); None for one each.
    """
    if x.ndim != 2 or x.dtype.kind != "f" or not len(x):
        return None
    mean, std = weighted_moments(x, weights)
    several = np.array([_more_than_two(column) for column in x.T])
    if not numbers:
        several &= (x != np.round(x)).any(0)
    if not (several & _beyond(mean, std)).any():
        return None
    return np.where(several, mean, 0.0).astype(x.dtype), np.where(several & (std > 0), std, 1.0).astype(x.dtype)


def _beyond(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Which columns are far from unit scale."""
    return (np.abs(mean) > MAX_UNSCALED) | (std > MAX_UNSCALED) | (std < 1 / MAX_UNSCALED)


def _more_than_two(column: np.ndarray) -> bool:
    return bool(((column != column.min()) & (column != column.max())).any())


def warn_of_unscaled(pool: PooledDataset, remedy: str) -> None:
    """Says which inputs are used as they are although they are far from unit scale: pictures and series, and columns
    of whole numbers, which may be ids.

    Args:
        pool: the data, after :func:`standardised`.
        remedy: what changes it, or says that it is meant.
    """
    if what := unscaled(pool):
        log.warning("%s: %s, far from unit scale, and is used as it is: %s", pool.name, what, remedy)


def unscaled(pool: PooledDataset) -> str:
    """Which inputs nothing standardises although they are far from unit scale, in words; empty for none."""
    x = pool.x_train
    if x.dtype == np.uint8 or not x.size:
        return ""
    if x.ndim > 2:
        return f"x reaches from {x.min():g} to {x.max():g}" if pool.mean is None and _far(x) else ""
    stay = np.ones(x.shape[1], dtype=bool) if pool.std is None else np.broadcast_to(pool.std == 1, x.shape[1:])
    far = np.flatnonzero(stay & _beyond(*weighted_moments(x, pool.train_weights)))
    column = next((int(k) for k in far if _more_than_two(x[:, k])), None)
    if column is None:
        return ""
    kind = "whole numbers" if bool((x[:, column] == np.round(x[:, column])).all()) else "numbers"
    return f"column {column} of x holds {kind} from {x[:, column].min():g} to {x[:, column].max():g}"


def _far(x: np.ndarray) -> bool:
    """Whether pictures or series (N, C, ...) are far from unit scale, by the moments of each channel."""
    axes = (0, *range(2, x.ndim))
    mean, std = x.mean(axes, dtype=np.float64), x.std(axes, dtype=np.float64)
    size = float(np.sqrt(np.square(mean).mean() + np.square(std).mean()))
    return bool(((np.abs(mean) > MAX_UNSCALED) | (std > MAX_UNSCALED)).any()) or 0 < size < LEAST_SPREAD
