"""Means over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float | None]:
    """Mean and standard error."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return float(np.mean(values)), error


def percent(value: tuple[float, float | None]) -> str:
    """Mean ± standard error, in percent."""
    mean, error = value
    return f"{100 * mean:.2f}" + ("" if error is None else f" ± {100 * error:.2f}")
