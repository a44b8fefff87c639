"""Gamma responses: y ~ Gamma(shape, shape / mu), mu = exp(eta)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from pyro.distributions import Gamma
from torch import Tensor

from .base import Response, Rows
from .reading import check_above_zero


class GammaResponse(Response):
    """y ~ Gamma(shape, shape / mu), mu = exp(eta) its mean and 1 / shape its variance over mu^2."""

    name = "gamma"
    about = "mean exp(eta), variance mean^2 / shape: *shape*"
    ratio = "ratio of means"
    order = 70
    formulas: ClassVar[Mapping[str, str]] = {"dispersion": "log_shape"}

    @classmethod
    def check(cls, name: str, y: np.ndarray) -> None:
        """See :class:`.base.Response`."""
        check_above_zero(cls.name, name, y)

    @classmethod
    def centre_parts(cls, y: np.ndarray, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """See :class:`.base.Response`."""
        return np.stack([y, np.exp(rows.get("offset", np.zeros_like(y)))], 1)

    @classmethod
    def centre(cls, total: float, count: float) -> float:
        """See :class:`.base.Response`."""
        return float(np.log(total / count))

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log shape."""
        return {"log_shape": torch.tensor(0.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        shape = values["log_shape"].exp()
        return Gamma(shape.expand_as(eta), shape * (-eta).exp())

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        shape = values["log_shape"].exp()
        weight = shape * y * (-eta).exp()
        return weight - shape, weight

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The shape."""
        return {"shape": values["log_shape"].exp()}
