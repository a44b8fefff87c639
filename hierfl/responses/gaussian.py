"""Normal responses: y ~ N(eta, sigma^2), sigma learned, or known for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from pyro.distributions import Normal
from torch import Tensor

from .base import Response, Rows
from .serial import Serial


class GaussianResponse(Response):
    """y ~ N(eta, sigma^2).

    Args:
        known: whether sigma is known.
        sd: where it begins.
        serial: how residuals of a series correlate; None for not at all.
    """

    name = "gaussian"
    about = "N(eta, sigma^2); `--known-se` where each row's sigma is known"
    order = 10
    columns = ("known", "precision")
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_noise"}
    closed_form = True
    residual: ClassVar[bool] = True
    own_prior: ClassVar[str] = "residual_prior"

    def __init__(self, known_errors: bool, sd: float, serial: Serial | None = None) -> None:
        self.known, self.sd, self.serial = known_errors, sd, serial

    @classmethod
    def near(cls, centre: float) -> float:
        """See :class:`.base.Response`."""
        return centre

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        return cls(design.known, settings.noise_0 * design.scale, Serial.from_correlation(design.correlation))

    @cached_property
    def starts(self) -> Mapping[str, Tensor]:
        """log sigma, where it is learned, and what rho is a function of."""
        noise = {} if self.known else {"log_noise": torch.tensor(self.sd).double().log()}
        return noise if self.serial is None else {**noise, "serial": self.serial.start}

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

    def at_bound(self, name: str, value: float) -> str:
        """rho, where it has run into zero."""
        of_rho = self.serial is not None and self.serial.kind == "car1" and name == "rho(residual)"
        return "at its lower bound" if of_rho and value < 1e-6 else ""

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """sigma and rho."""
        noise = {} if self.known else {"sd(residual)": values["log_noise"].exp()}
        return noise if self.serial is None else {**noise, "rho(residual)": self.serial.rho(values["serial"])}
