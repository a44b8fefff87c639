"""Whether a network's inputs are standardised, and by what."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import unknown
from .pool import PooledDataset

#: "auto" standardises where a column's scale is far from one
Standardise = bool | Literal["auto"]
#: a column is far from unit scale where its mean or standard deviation is beyond this, or the latter below its inverse
FAR = 4.0


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
        UserError: for another word.
    """
    if not isinstance(wanted, bool) and wanted not in get_args(get_args(Standardise)[1]):
        raise unknown("value of standardise", wanted, ("True", "False", "auto"))
    if wanted is False or pool.mean is not None:
        return pool
    x = pool.x_train
    if wanted is True:
        mean, std = x.mean(0), x.std(0)
        return replace(pool, mean=mean, std=np.where(std > 0, std, 1.0))
    if x.ndim != 2 or x.dtype.kind not in ("iuf" if numbers else "f") or not len(x):
        return pool
    mean, std = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    several = np.array([_more_than_two(column) for column in x.T])
    if not numbers:
        several &= (x != np.round(x)).any(0)
    far = several & ((np.abs(mean) > FAR) | (std > FAR) | (std < 1 / FAR))
    if not far.any():
        return pool
    kind = x.dtype if x.dtype.kind == "f" else np.float32
    return replace(
        pool, mean=np.where(several, mean, 0.0).astype(kind), std=np.where(several & (std > 0), std, 1.0).astype(kind)
    )


def _more_than_two(column: np.ndarray) -> bool:
    return bool(((column != column.min()) & (column != column.max())).any())


def model_inputs(x: Tensor, mean: Tensor | None, std: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Raw inputs (..., *event) as a model sees them: bytes over 255, then standardised by what there is."""
    scale = 255 if x.dtype == torch.uint8 else 1
    if mean is None or std is None:
        return x.to(dtype) / scale if scale > 1 else x.to(dtype)
    x = x.to(dtype, copy=True)  # (in place from here: images are many)
    return x.sub_(scale * mean.to(dtype)).div_(scale * std.to(dtype))
