"""The likelihood of a gaussian response whose rows have standard deviations of their own, by a formula.

Sums of products that are made once do not say it: rows count by what their deviations are. Given the population each
client's integral is a normal one, so that one node has it exactly, and so has the integral over coefficients that
restricted estimates maximise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hierfl.errors import UserError

from .likelihood import Quadrature


@dataclass(frozen=True)
class RowsGaussian(Quadrature):
    """See :class:`.likelihood.Quadrature`; restricted estimates are the usual ones."""

    automatic: ClassVar[Literal["reml", "auto"]] = "reml"

    def check(self) -> None:
        """Refuses what needs sums that are made once.

        Raises:
            UserError: for it.
        """
        s = self.method.settings
        if self.method.above:
            raise UserError("a dispersion formula of a gaussian response has no groups of clients above it")
        if s.kenward_roger:
            raise UserError("kenward_roger is of one residual deviation: no dispersion formula beside it")
        if s.population == "reml" and s.profile:
            raise UserError("profile intervals of a gaussian response with a dispersion formula are of population=ml")
