"""In what a regression's response is computed: from the user's units to standard ones, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class ResponseUnits(NamedTuple):
    """Mean and standard deviation of the training responses, in the user's units."""

    mean: float
    sd: float

    @classmethod
    def of(cls, y: np.ndarray) -> ResponseUnits:
        """Of responses (n,); constant ones have standard deviation 1."""
        y = np.asarray(y, dtype=np.float64)
        sd = float(y.std()) if len(y) else 0.0
        return cls(float(y.mean()) if len(y) else 0.0, sd if sd > 0 else 1.0)

    def standard(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Responses in the user's units as a model sees them: mean 0, standard deviation 1."""
        return ((y.double() - self.mean) / self.sd).to(dtype)

    def users(self, y: Tensor) -> Tensor:
        """Responses, or their means, in the user's units."""
        return y * self.sd + self.mean

    def terms(self, terms: Sequence[Tensor]) -> list[Tensor]:
        """Means, log densities and, where there are any, standard deviations, in the user's units."""
        mean, log_density, *spread = terms
        return [self.users(mean), self.density(log_density), *(s * self.sd for s in spread)]

    def density(self, log_density: Tensor) -> Tensor:
        """Log density of a response in the user's units."""
        return log_density - float(np.log(self.sd))
