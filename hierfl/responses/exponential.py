"""Exponential times, whose hazard is constant, or steps at cuts.

h_0 is exp(a_k) between two cuts, a_1 = 0. This is a Poisson model of each row's intervals, with the logarithm of the
time spent there as its offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import UserError
from .base import Response, Rows
from .times import Survival, TimeResponse


class PiecewiseExponential(Survival):
    """h_0 steps at cuts.

    Args:
        eta, event: see :class:`.times.Survival`.
        steps: a_2, a_3, ..., (..., number of cuts), broadcast beside eta.
        cuts: above zero, in their order.
    """

    def __init__(self, eta: Tensor, event: Tensor | None, steps: Tensor | None, cuts: Sequence[float]) -> None:
        super().__init__(eta, event)
        first = torch.zeros_like(eta[..., :1]) if steps is None else torch.zeros_like(steps[..., 0])
        self.logs = [first] if steps is None else [first, *steps.unbind(-1)]
        self.edges = [0.0, *cuts, torch.inf]

    def baseline(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`.times.Survival`."""
        log_hazard = total = torch.zeros_like(t)
        for a, (first, last) in zip(self.logs, pairwise(self.edges), strict=True):
            total = total + a.exp() * (t.clamp(max=last) - first).clamp_min(0)
            log_hazard = torch.where((t > first) & (t <= last), a, log_hazard)
        return log_hazard, total

    def when(self, amount: Tensor) -> Tensor:
        """See :class:`.times.Survival`."""
        t, left = torch.zeros_like(amount), amount
        for a, (first, last) in zip(self.logs, pairwise(self.edges), strict=True):
            spent = torch.minimum(left, a.exp() * (last - first))
            t, left = t + spent / a.exp(), left - spent
        return t

    @property
    def mean(self) -> Tensor:
        """The integral of the survival function."""
        total, before = torch.zeros_like(self.eta), torch.zeros_like(self.eta)
        for a, (first, last) in zip(self.logs, pairwise(self.edges), strict=True):
            rate = (a + self.eta).exp()
            after = before + rate * (last - first)
            total, before = total + ((-before).exp() - (-after).exp()) / rate, after
        return total


@dataclass(frozen=True)
class ExponentialResponse(TimeResponse):
    """Hazards that step.

    Attributes:
        cuts: where; the hazard is constant where there are none.
    """

    cuts: tuple[float, ...] = ()

    name = "exponential"
    about = 'times; the hazard is constant, or steps at `--set cuts="3, 6, 12"`: *log hazards* beside the first'
    ratio = "hazard ratio"
    order = 90
    columns = ("event",)
    settings: ClassVar[Mapping[str, tuple[str, str]]] = {
        "cuts": (
            "times at which the hazard steps, such as 3, 6, 12; empty for a constant one",
            "cuts are of an exponential response's hazard",
        )
    }

    @classmethod
    def from_design(cls, design: Any, settings: Any) -> Response:
        """See :class:`.base.Response`."""
        return cls(read_cuts(settings.cuts))

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """How much larger log hazards are than that of the first interval."""
        return {"steps": torch.zeros(len(self.cuts))} if self.cuts else {}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Survival:
        """See :class:`.base.Response`."""
        return PiecewiseExponential(eta, rows.event, values.get("steps"), self.cuts)

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
    if text.strip().startswith("auto"):
        raise UserError("cuts at quantiles of event times are of the family cox: family='cox', intervals='10'")
    try:
        cuts = tuple(float(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        cuts = (-1.0,)
    if any(not after > before or after == torch.inf for before, after in zip((0.0, *cuts), cuts, strict=False)):
        raise UserError(f"cuts are times above zero that grow, such as 3, 6, 12, not {text[:60]!r}")
    return cuts
