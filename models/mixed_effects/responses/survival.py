"""Times until something happens, whose hazards are proportional.

    hazard(t) = h_0(t) exp(eta),    log p = event * log hazard(t) - exp(eta) H_0(t),    H_0 the integral of h_0

A row whose event is 0 was watched until t without one. Piecewise exponential: h_0 is exp(a_k) between two cuts,
a_1 = 0, which is a Poisson model of each row's intervals with the logarithm of the time spent there as its offset.
Weibull: H_0(t) = t^k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution, constraints
from torch import Tensor

from hierfl.data.formula.design import Columns
from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError

from .families import ResponseFamily


class Survival(TorchDistribution):
    """A time with proportional hazards; log densities are of its event or of having none by then.

    Args:
        eta: (..., S, n).
        event: 1 or 0, broadcast to it; None for events everywhere.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.positive

    def __init__(self, eta: Tensor, event: Tensor | None) -> None:
        self.eta, self.event = eta, event
        super().__init__(eta.shape, validate_args=False)

    def baseline(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """log h_0 and H_0."""
        raise NotImplementedError

    def when(self, amount: Tensor) -> Tensor:
        """The time at which H_0 has reached so much."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """See the module."""
        log_hazard, total = self.baseline(value)
        event = 1.0 if self.event is None else self.event
        return event * (log_hazard + self.eta) - self.eta.exp() * total

    def sample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:  # noqa: B008
        """The time of an event, however late."""
        u = torch.rand(sample_shape + self.batch_shape, dtype=self.eta.dtype, device=self.eta.device)
        return self.when(-torch.log1p(-u) * (-self.eta).exp())


class Weibull(Survival):
    """H_0(t) = t^k exp((k - 1) c): c, about the logarithm of a rate, lets k change and the intercept stay.

    Args:
        eta, event: see :class:`Survival`.
        log_k: broadcast to eta.
        c: see above.
    """

    def __init__(self, eta: Tensor, event: Tensor | None, log_k: Tensor, c: float) -> None:
        super().__init__(eta, event)
        self.log_k, self.c = log_k, c

    def baseline(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Survival`."""
        k, scaled = self.log_k.exp(), t.log() + self.c
        return self.log_k + (k - 1) * scaled, (k * scaled - self.c).exp()

    def when(self, amount: Tensor) -> Tensor:
        """See :class:`Survival`."""
        return ((amount.log() + self.c) / self.log_k.exp() - self.c).exp()

    @property
    def mean(self) -> Tensor:
        """Of the time."""
        scale = (self.c - self.eta) / self.log_k.exp() - self.c
        return (scale + torch.lgamma(1 + (-self.log_k).exp())).exp()


class PiecewiseExponential(Survival):
    """h_0 steps at cuts.

    Args:
        eta, event: see :class:`Survival`.
        steps: a_2, a_3, ..., (..., number of cuts), broadcast beside eta.
        cuts: above zero, in their order.
    """

    def __init__(self, eta: Tensor, event: Tensor | None, steps: Tensor | None, cuts: Sequence[float]) -> None:
        super().__init__(eta, event)
        first = torch.zeros_like(eta[..., :1]) if steps is None else torch.zeros_like(steps[..., 0])
        self.logs = [first] if steps is None else [first, *steps.unbind(-1)]
        self.edges = [0.0, *cuts, torch.inf]

    def baseline(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`Survival`."""
        log_hazard = total = torch.zeros_like(t)
        for a, (first, last) in zip(self.logs, pairwise(self.edges), strict=True):
            total = total + a.exp() * (t.clamp(max=last) - first).clamp_min(0)
            log_hazard = torch.where((t > first) & (t <= last), a, log_hazard)
        return log_hazard, total

    def when(self, amount: Tensor) -> Tensor:
        """See :class:`Survival`."""
        t, left = torch.zeros_like(amount), amount
        for a, (first, last) in zip(self.logs, pairwise(self.edges), strict=True):
            spent = torch.minimum(left, a.exp() * (last - first))
            t, left = t + spent / a.exp(), left - spent
        return t

    @property
    def mean(self) -> Tensor:
        """The integral of the survival function."""
        found, before = torch.zeros_like(self.eta), torch.zeros_like(self.eta)
        for a, (first, last) in zip(self.logs, pairwise(self.edges), strict=True):
            rate = (a + self.eta).exp()
            after = before + rate * (last - first)
            found, before = found + ((-before).exp() - (-after).exp()) / rate, after
        return found


class SurvivalFamily(ResponseFamily):
    """What both kinds share: a Poisson's derivatives."""

    ratio: ClassVar[str] = "hazard ratio"

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Survival:
        """See :class:`.families.ResponseFamily`."""
        raise NotImplementedError

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], columns: Columns
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.families.ResponseFamily`."""
        amount = eta.exp() * self.response(eta, values, columns).baseline(y)[1]
        return (1.0 if columns.event is None else columns.event) - amount, amount


@dataclass(frozen=True)
class WeibullFamily(SurvivalFamily):
    """Weibull times.

    Attributes:
        c: the offset of eta (see :class:`Weibull`).
    """

    c: float

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """log k."""
        return {"log_k": torch.tensor(0.0)}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Survival:
        """See :class:`.families.ResponseFamily`."""
        return Weibull(eta, columns.event, values["log_k"], self.c)

    def coefficients(
        self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]
    ) -> tuple[Sequence[str], Tensor]:
        """The intercept is of H_0(t) = t^k."""
        more = (values["log_k"].exp() - 1) * self.c
        at = beta.new_tensor([1.0 if name in INTERCEPT else 0.0 for name in names])
        return names, beta + more[:, None] * at

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """k."""
        return {"shape": values["log_k"].exp()}


@dataclass(frozen=True)
class PiecewiseExponentialFamily(SurvivalFamily):
    """Hazards that step.

    Attributes:
        cuts: where; the hazard is constant where there are none.
    """

    cuts: tuple[float, ...] = ()

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """How much larger log hazards are than that of the first interval."""
        return {"steps": torch.zeros(len(self.cuts))} if self.cuts else {}

    def response(self, eta: Tensor, values: Mapping[str, Tensor], columns: Columns) -> Survival:
        """See :class:`.families.ResponseFamily`."""
        return PiecewiseExponential(eta, columns.event, values.get("steps"), self.cuts)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The log hazard ratios of the later intervals."""
        ends = [*(f"to {cut:g}" for cut in self.cuts[1:]), "on"] if self.cuts else []
        return {
            f"log hazard, {first:g} {end}": values["steps"][..., k]
            for k, (first, end) in enumerate(zip(self.cuts, ends, strict=True))
        }


def read_cuts(text: str) -> tuple[float, ...]:
    """Cuts as they are written: ``3, 6, 12``.

    Raises:
        UserError: for anything but numbers above zero that grow.
    """
    try:
        cuts = tuple(float(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        cuts = (-1.0,)
    if any(not after > before or after == torch.inf for before, after in zip((0.0, *cuts), cuts, strict=False)):
        raise UserError(f"cuts are times above zero that grow, such as 3, 6, 12, not {text[:60]!r}")
    return cuts
