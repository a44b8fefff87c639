"""Digits in MATLAB's files: SVHN's, and the synthetic ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files import shown
from .mat import read_mat


def read_matlab_digits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """X (height, width, 3, N) and y (N, 1) of a .mat file, as images (N, 3, height, width) and labels; 10 is a nought.

    Raises:
        UserError: for what holds no such arrays.
    """
    arrays = read_mat(path, ("X", "y"))
    x, y = arrays["X"], arrays["y"].reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or y.dtype.kind not in "iuf":
        raise UserError(f"{shown(path)}: X is {x.dtype}{x.shape}, not uint8 (height, width, 3, N)")
    if not np.isin(y, np.arange(11)).all() or len(y) != x.shape[3]:
        raise UserError(f"{shown(path)}: y is not {x.shape[3]} labels from 0 to 10")
    labels = y.astype(np.int64)
    return np.ascontiguousarray(np.transpose(x, (3, 2, 0, 1))), np.where(labels == 10, 0, labels)
