"""Weights of training rows: for how many rows each one stands."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UserError
from ..plurals import counted
from .labels import one_column
from .raw_values import number_array


def row_weights(weights: Any, rows: int, what: str) -> np.ndarray:
    """Weights of rows, (n,) in float64.

    Args:
        weights: (n,) or (n, 1).
        rows: n.
        what: they are, for messages.

    Raises:
        UserError: for a number that is not above zero or not finite, and another length.
    """
    numbers = number_array(one_column(weights, what), what).astype(np.float64)
    if numbers.shape != (rows,):
        raise UserError(f"{what} has {counted(len(numbers), 'value')}, and x has {counted(rows, 'row')}")
    if bad := int((~(np.isfinite(numbers) & (numbers > 0))).sum()):
        raise UserError(f"{what} holds {bad} value{'s' * (bad != 1)} that no row can stand for: weights are above zero")
    return numbers
