"""Beta responses: y ~ Beta(mu phi, (1 - mu) phi), mu = logistic(eta) the mean, mu (1 - mu) / (1 + phi) the variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import Beta
from torch import Tensor

from .base import Response, Rows
from .reading import impossible

#: the largest slope of mu (1 - mu) in eta, (1 / 6) / sqrt(3)
STEEPEST = 0.0962251


class OpenBeta(Beta):
    """A beta distribution whose draws are never rounded to 0 or 1, which have no log density."""

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """Its draws, between the smallest double precision number and the largest below 1."""
        drawn: Tensor = super().sample(sample_shape)
        return drawn.clamp(torch.finfo(drawn.dtype).tiny, 1 - torch.finfo(drawn.dtype).eps / 2)


class BetaResponse(Response):
    """y ~ Beta(mu phi, (1 - mu) phi), between 0 and 1, whose log density bends both ways."""

    name = "beta"
    about = "shares between 0 and 1, without these: beta(mu phi, (1 - mu) phi), mu = logistic(eta): *precision* phi"
    ratio = "ratio of odds"
    order = 65
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_precision"}
    concave: ClassVar[bool] = False

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        inside = (y > 0) & (y < 1)
        if not inside.all():
            raise impossible(name, y, inside, f"a response of the family {cls.name} is above 0 and below 1")

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`."""
        return float(np.log(total) - np.log(count - total))

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See :class:`.base.Response`."""
        return np.stack([y, np.ones_like(y)], 1)

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log phi."""
        return {"log_precision": torch.tensor(1.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        phi = values["log_precision"].exp()
        return OpenBeta(phi * eta.sigmoid(), phi * (-eta).sigmoid(), validate_args=False)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        phi, mean, rest = values["log_precision"].exp(), eta.sigmoid(), (-eta).sigmoid()
        a, b = phi * mean, phi * rest
        # d a / d eta = phi mu (1 - mu), which changes by the factor 1 - 2 mu
        pace, pull = phi * mean * rest, _log_odds(y) - torch.digamma(a) + torch.digamma(b)
        spread = pace.square() * (torch.polygamma(1, a) + torch.polygamma(1, b))
        return pace * pull, spread - pace * (rest - mean) * pull

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The weight of a parabola that lies below everywhere: no second derivative is steeper (Boehning and Lindsay,
        1988).

        a^2 psi'(a) <= a + 1, so that the first part of the weight is at most phi / 4 + 1, and the gamma functions'
        share of the second one is never above zero.
        """
        phi = values["log_precision"].exp()
        return (phi / 4 + 1 + STEEPEST * phi * _log_odds(y).abs()).expand_as(eta)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """phi."""
        return {"precision": values["log_precision"].exp()}


def _log_odds(y: Tensor) -> Tensor:
    """The log odds of shares; those of rows that fill a batch up are 0."""
    inside = torch.where((y > 0) & (y < 1), y, 0.5)
    return inside.log() - torch.log1p(-inside)
