"""What the columns of a table's inputs are, as the architecture of a mixed-effects model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ...errors import UserError, unknown
from ...nn.architecture import Architecture
from ...nn.functional import Network
from ...nn.head import LinearHead

#: what a column of ones is called
INTERCEPT = ("Intercept", "1")
Family = Literal["gaussian", "binomial", "poisson"]


@dataclass(frozen=True)
class Design(Architecture):
    """What the columns of a table's inputs are: [fixed | random | standard error of the response].

    Attributes:
        fixed: names of the columns of x_ij.
        random: names of the columns of z_ij.
        family: of the response.
        known: whether the last column holds standard errors (gaussian only).
        centre, scale: about where the linear predictor lies, and how far it spreads: where a fit begins.
        units: root mean squares of the random columns, for the same.
        separate: whether the formula has its random effects in terms of their own, which have no correlations.
    """

    fixed: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    family: Family = "gaussian"
    known: bool = False
    centre: float = 0.0
    scale: float = 1.0
    units: tuple[float, ...] = ()
    separate: bool = False

    @classmethod
    def of(
        cls, fixed: Sequence[str], random: Sequence[str], family: Family = "gaussian", known: bool = False,
        centre: float = 0.0, scale: float = 1.0, units: Sequence[float] = (), separate: bool = False,
    ) -> Design:  # fmt: skip
        """A design with these columns.

        Raises:
            UserError: without columns, for an unknown family, or standard errors in a family that has none.
        """
        if not fixed or not random:
            raise UserError("a mixed-effects design needs at least one fixed and one random column")
        if family not in get_args(Family):
            raise unknown("family", family, get_args(Family))
        if known and family != "gaussian":
            raise UserError(f"known standard errors belong to a gaussian response, not a {family} one")
        head = LinearHead(len(fixed) + len(random), 1)
        units = tuple(units) or (1.0,) * len(random)
        return cls(
            Network(nn.Identity()), head, None, "design", fixed=tuple(fixed), random=tuple(random), family=family,
            known=known, centre=centre, scale=scale, units=units, separate=separate,
        )  # fmt: skip

    def split(self, columns: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """x (S, n, p), z (S, n, q) and standard errors (S, n) or None, from the inputs (S, n, p + q [+ 1])."""
        p, q = len(self.fixed), len(self.random)
        known = columns[..., p + q] if self.known else None
        if known is not None:
            known = torch.where(known > 0, known, 1.0)  # (rows of a template have none)
        return columns[..., :p], columns[..., p : p + q], known
