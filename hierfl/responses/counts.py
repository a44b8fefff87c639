"""What responses that are whole numbers share.

Where a size or a precision has no end, or no more zeros are there than a Poisson's, the spread is the Poisson's or the
binomial's own. Ratios of gamma functions are written so that nothing is lost there (:mod:`.gamma_ratios`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import Poisson as PyroPoisson
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from .base import Response
from .reading import impossible

#: a number of a response's own beyond this is at its bound
NO_END = 1e6
#: a rate beyond which a draw is the rate itself: torch.poisson counts in 64 bits, and comes out negative from 9.2e18 on
LARGEST_RATE = 1e15


class Poisson(PyroPoisson):
    """Poisson counts of any rate."""

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Draws, (*sample_shape, *batch_shape)."""
        rate = self.rate.expand(self._extended_shape(sample_shape))
        with torch.no_grad():
            return torch.where(rate < LARGEST_RATE, torch.poisson(rate.clamp_max(LARGEST_RATE)), rate)


class CountDistribution(TorchDistribution):
    """A distribution of whole numbers whose log density is written here.

    Args:
        shape: of its values.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.nonnegative

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(shape, validate_args=False)


class CountResponse(Response):
    """A whole number from 0, of mean about exp(eta)."""

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        whole = (y >= 0) & (y == np.floor(y))
        if not whole.all():
            raise impossible(name, y, whole, f"a {cls.name} response is a whole number from 0")

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See :class:`.base.Response`."""
        return np.stack([y, np.exp(rows.get("offset", np.zeros_like(y)))], 1)

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`."""
        return float(np.log(max(total, 1.0) / count))
