"""Normal responses: y ~ N(eta, sigma^2), sigma learned, or known for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import Normal
from torch import Tensor

from .base import Response, Rows


class GaussianResponse(Response):
    """y ~ N(eta, sigma^2).

    Args:
        known: whether sigma is known.
        sd: where it begins.
    """

    name = "gaussian"
    about = "N(eta, sigma^2); `--known-se` where each row's sigma is known"
    order = 10
    columns = ("known", "precision")
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_noise"}
    closed_form = True
    residual: ClassVar[bool] = True
    own_prior: ClassVar[str] = "residual_prior"

    def __init__(self, known: bool, sd: float) -> None:
        self.known, self.sd = known, sd

    @classmethod
    def near(cls, centre: float) -> float:
        """See :class:`.base.Response`."""
        return centre

    @classmethod
    def of(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        return cls(design.known, settings.noise_0 * design.scale)

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log sigma, where it is learned."""
        return {} if self.known else {"log_noise": torch.tensor(self.sd).double().log()}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return Normal(eta, self.noise(values, rows))

    def noise(self, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """sigma, broadcast to (..., S, n)."""
        if rows.known is not None:
            return rows.known
        sd = values["log_noise"].exp()
        return sd if rows.precision is None else sd * rows.precision.rsqrt()

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        precision = self.noise(values, rows).square().reciprocal()
        return (y - eta) * precision, precision.expand_as(eta)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """sigma."""
        return {} if self.known else {"sd(residual)": values["log_noise"].exp()}
