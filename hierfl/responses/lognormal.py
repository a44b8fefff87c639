"""Log-normal responses: log y ~ N(eta, sigma^2). Its density is the normal one of log y over y."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import LogNormal
from torch import Tensor

from .base import Response, Rows
from .reading import check_above_zero


class LogNormalResponse(Response):
    """log y ~ N(eta, sigma^2).

    Args:
        sd: where sigma begins.
    """

    name = "lognormal"
    about = "log y is N(eta, sigma^2): *sd(residual)* of log y"
    ratio = "ratio of medians"
    order = 75
    residual = True
    columns = ("precision",)
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_noise"}
    own_prior = "residual_prior"

    def __init__(self, sd: float) -> None:
        self.sd = sd

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        check_above_zero(cls.name, name, y)

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See :class:`.base.Response`."""
        return super().centre_parts(np.log(y), rows)

    @classmethod
    def near(cls, centre: float) -> float:
        """See :class:`.base.Response`."""
        return float(np.log(centre)) if centre > 0 else 0.0

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        return cls(settings.noise_0 * design.scale)

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log sigma."""
        return {"log_noise": torch.tensor(self.sd).double().log()}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return LogNormal(eta, self.noise(values, rows))

    def noise(self, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """sigma, broadcast to (..., S, n)."""
        sd = values["log_noise"].exp()
        return sd if rows.precision is None else sd * rows.precision.rsqrt()

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        precision = (-2 * values["log_noise"]).exp()
        precision = precision if rows.precision is None else precision * rows.precision
        return (y.log() - eta) * precision, precision.expand_as(eta)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """sigma."""
        return {"sd(residual)": values["log_noise"].exp()}
