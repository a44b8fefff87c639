"""Units of a regression's response: standardises y for the computation, and converts back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .weighted_moments import weighted_moments

#: metrics in float32 do not hold responses beyond this, or below its inverse
LARGEST = 1e30
#: metrics that are in the responses' unit
LENGTHS = ("rmse", "crps")


class ResponseUnits(NamedTuple):
    """Mean and standard deviation of the training responses, in the user's units."""

    mean: float
    sd: float

    @classmethod
    def from_responses(cls, y: np.ndarray, weights: np.ndarray | None = None) -> ResponseUnits:
        """Returns the units of responses (n,); constant ones have standard deviation 1.

        Args:
            y: the responses.
            weights: of their rows, (n,); None for one each.

        Raises:
            UserError: for responses beyond what metrics in float32 hold.
        """
        y = np.asarray(y, dtype=np.float64)
        if not len(y) or bool((y == y[0]).all()):
            return cls(float(y[0]) if len(y) else 0.0, 1.0)
        largest = float(np.abs(y).max())
        if not 1 / LARGEST < largest < LARGEST:
            raise UserError(f"the responses reach {largest:.3g}: give them in another unit, such as y / {largest:.0e}")
        mean, sd = map(float, weighted_moments(y, weights))
        return cls(mean, sd if sd > 0 else 1.0)

    def standard(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Responses in the user's units as a model sees them: mean 0, standard deviation 1."""
        return ((y.double() - self.mean) / self.sd).to(dtype)

    def users(self, y: Tensor) -> Tensor:
        """Responses, or their means, in the user's units: in float64, since their mean may be far beyond their sd."""
        return y.double() * self.sd + self.mean

    def metrics(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Metrics of standardised responses, in the user's units: the mean, which may be far beyond the sd, cancels."""
        return {name: value * self.sd if name in LENGTHS else value for name, value in rows.items()}

    def density(self, log_density: Tensor) -> Tensor:
        """Log density of a response in the user's units."""
        return log_density - float(np.log(self.sd))
