"""Student-t responses, whose outliers pull little: (y - eta) / scale ~ t(df).

y is normal, of a variance scale^2 / g with g ~ Gamma(df / 2, df / 2). Given g a fit is one of weighted least squares,
in which a row counts (df + 1) / (df + r^2), r = (y - eta) / scale (Lange, Little and Taylor, JASA 84:881, 1989).

A log density that is not concave may give a client's effects several modes, as where two of its rows disagree by many
scales: the one that is reached from where the search was is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Any, ClassVar

import torch
from pyro.distributions import Chi2, TorchDistribution, constraints
from scipy.special import stdtr
from torch import Tensor

from ..errors import UserError
from .base import Response, Rows
from .counts import NO_END
from .gamma_ratios import rising


class StudentT(TorchDistribution):
    """Student's t distribution of location eta.

    Args:
        eta: (..., S, n).
        scale, df: broadcast to it.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real

    def __init__(self, eta: Tensor, scale: Tensor, df: Tensor) -> None:
        self.eta, self.scale, self.df = eta, scale, df
        super().__init__(torch.broadcast_shapes(eta.shape, scale.shape, df.shape), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """eta; it is the median where df is 1 or less, and there is no mean."""
        return self.eta.expand(self.batch_shape)

    @property
    def variance(self) -> Tensor:
        """scale^2 df / (df - 2).

        Raises:
            NotImplementedError: where there is none.
        """
        if not (self.df > 2).all():
            raise NotImplementedError
        return (self.scale.square() / (1 - 2 / self.df)).expand(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density, which keeps its digits as df grows without end and t becomes normal."""
        r = (value - self.eta) / self.scale
        constant = rising(torch.full_like(self.df, 0.5), self.df / 2) - 0.5 * log(2 * pi) - self.scale.log()
        return constant - 0.5 * (self.df + 1) * torch.log1p(r.square() / self.df)

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function by SciPy, without derivatives."""
        r, df = torch.broadcast_tensors((value - self.eta) / self.scale, self.df)
        return torch.as_tensor(stdtr(df.detach().numpy(), r.detach().numpy()), dtype=r.dtype)

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """A normal's of a Gamma's."""
        shape = sample_shape + self.batch_shape
        noise = torch.randn(shape, dtype=self.eta.dtype, device=self.eta.device)
        df = self.df.expand(shape)
        g = (Chi2(df).sample() / df).clamp_min(torch.finfo(df.dtype).tiny)
        return self.eta + self.scale * noise / g.sqrt()


@dataclass(frozen=True)
class StudentTResponse(Response):
    """y ~ eta + scale t(df), whose log density bends both ways.

    Attributes:
        sd: where the scale begins, over that of y.
        spread: of y.
        known_df: degrees of freedom that are not learned; 0 where they are.
    """

    sd: float
    spread: float
    known_df: float = 0.0

    name = "student-t"
    about = "eta + *scale* t(*df*), for outliers; `--set degrees_of_freedom=4` where df is not learned"
    order = 12
    residual: ClassVar[bool] = True
    concave: ClassVar[bool] = False
    own_prior: ClassVar[str] = "residual_prior"
    settings: ClassVar[Mapping[str, tuple[str, str]]] = {
        "degrees_of_freedom": (
            "degrees of freedom, such as 4; empty where they are learned",
            "degrees_of_freedom are of a student-t response",
        )
    }

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        return cls(settings.noise_0, design.scale, read_df(settings.degrees_of_freedom))

    @classmethod
    def near(cls, centre: float) -> float:
        """See :class:`.base.Response`."""
        return centre

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """The logarithm of the scale over the spread of y, and log(df - 1), at 8, where it is learned."""
        learned = {} if self.known_df else {"log_df": torch.tensor(7.0).double().log()}
        return {"log_scale": torch.tensor(self.sd).double().log(), **learned}

    @property
    def unit(self) -> float:
        """See :class:`.base.Response`."""
        return self.spread

    def width(self, values: Mapping[str, Tensor]) -> Tensor | None:
        """The width of the peak: the standard deviation of a normal with its curvature."""
        return self.scale(values) / (1 + 1 / self.df(values)).sqrt()

    def scale(self, values: Mapping[str, Tensor]) -> Tensor:
        """The scale in the units of y, broadcast beside eta."""
        return values["log_scale"].exp() * self.spread

    def df(self, values: Mapping[str, Tensor]) -> Tensor:
        """Degrees of freedom, broadcast beside eta."""
        like = values["log_scale"]
        return torch.full_like(like, self.known_df) if self.known_df else 1 + values["log_df"].exp()

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return StudentT(eta, self.scale(values), self.df(values))

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        counts, over = self.safe_weight(eta, y, values, rows), self._over(eta, y, values)
        return counts * (y - eta), counts * (1 - over) / (1 + over)

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """The weight of the normal with the variance that is expected given y."""
        more = 1 + 1 / self.df(values)
        return more / self.scale(values).square() / (1 + self._over(eta, y, values))

    def _over(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """r^2 / df."""
        return ((y - eta) / self.scale(values)).square() / self.df(values)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The scale, and df where it is learned."""
        learned = {} if self.known_df else {"df": 1 + values["log_df"].exp()}
        return {"scale": self.scale(values), **learned}

    def at_bound(self, name: str, value: float) -> str:
        """See :class:`.base.Response`."""
        if name != "df":
            return ""
        ends = {"without end: no more outliers than a normal's": value > NO_END}
        ends["at its lower bound: as many outliers as a Cauchy's"] = value < 1 + 1 / NO_END
        return next((note for note, holds in ends.items() if holds), "")

    def end(self, name: str, value: float) -> float:
        """df begins at 1."""
        return 1 + super().end(name, value - 1) if name == "df" else super().end(name, value)


def read_df(text: str) -> float:
    """Degrees of freedom as they are written; 0 for none.

    Raises:
        UserError: for anything but one number above zero.
    """
    try:
        df = float(text) if text.strip() else 0.0
    except ValueError:
        df = -1.0
    if not 0 <= df < torch.inf or (text.strip() and not df):
        raise UserError(f"degrees_of_freedom are one number above zero, such as 4, not {text[:60]!r}")
    return df
