"""Which broadcasts an honest search never makes: coefficients so large that they cut a site's rows at a value.

The likelihood of a binary outcome with a coefficient of 300 on age counts the patients above an age, and a few such
counts are the ages. Estimates do not cut: the linear predictor of a site's rows has no large spread. Three numbers are
bounded, and :data:`ASKED` and :data:`EXPLORED` are above what honest fits have been measured to ask for
(tests/support/honest_points.py):

    steepness    the spread over the site's own rows of the linear predictor, by columns of more than two values
    reach        the largest other coefficient, in units in which columns have a spread of one; of groups of clients
                 those of columns alone that differ between rows: few groups leave their deviation open
    power        of Weibull times the logarithm of the power of time: large ones single out the longest time

The site's own rows are what is looked at: units are made of all sites' totals, of which a server may say anything.
Roots of covariances are not bounded: a wide prior cuts nothing. Of gaussian and lognormal responses likelihoods are
quadratic in coefficients, which cut nothing either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.data.formula.parsed import OUTER
from hierfl.inference.state import State

from ..model.equations import MixedModel
from .requests import HEIGHTS, Phase, carried

#: shared values that are as long as a point, beside the estimates
POINTS = ("at", "restricted")


class Extent(NamedTuple):
    """How large coefficients are.

    Attributes:
        steepness, reach, power: as above, of the largest point.
    """

    steepness: float
    reach: float
    power: float = 0.0

    def is_within(self, most: Extent) -> bool:
        """Whether it is nowhere beyond these."""
        return all(value <= bound for value, bound in zip(self, most, strict=True))


#: the most of a point with derivatives, and of a point that is explored
ASKED, EXPLORED = Extent(6.0, 60.0, 3.0), Extent(8.0, 120.0, 5.0)


@dataclass(frozen=True)
class OwnRows:
    """One client's columns.

    Attributes:
        columns: in the design's units, (n, p).
        numeric: which have more than two values here, (p,).
    """

    columns: Tensor
    numeric: Tensor

    @classmethod
    def of(cls, columns: Tensor) -> OwnRows:
        """Columns (n, p)."""
        many = [len(column.unique()) > 2 for column in columns.unbind(-1)]
        return cls(columns, torch.tensor(many, dtype=torch.bool))

    def extent(self, coefficients: Tensor, power: Tensor | None = None) -> Extent:
        """Of points (..., p) with the logarithms of their powers of time, (...)."""
        points = coefficients.reshape(-1, coefficients.shape[-1])
        others = points[:, ~self.numeric].abs()
        if not self.numeric.any():
            return Extent(0.0, _most(others), 0.0 if power is None else _most(power))
        spread = (points[:, self.numeric] @ self.columns[:, self.numeric].mT).std(-1, correction=0)
        return Extent(_most(spread), _most(others), 0.0 if power is None else _most(power))


def _most(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


@dataclass(frozen=True)
class SiteRanges:
    """What one client's rows say of broadcasts.

    Args:
        method: whose.
        inputs: the client's rows, (n, width).
    """

    method: MixedModel
    inputs: Tensor

    def asked(self, shared: State) -> list[Extent]:
        """Of points with derivatives, and of estimates."""
        method, rows = self.method, self._fixed
        found = [self._point(rows, method.parts(shared[f"effects.{k}"])) for k in POINTS if f"effects.{k}" in shared]
        found.append(self._point(rows, {k: shared[f"effects.{k}"] for k in method.sizes if f"effects.{k}" in shared}))
        for level in method.above:
            found.append(self._above(shared[f"effects.{level.effects}"]))
        return [*found, self._above(shared["effects.nodes"])] if "effects.nodes" in shared else found

    def explored(self, shared: State) -> list[Extent]:
        """Of points that are explored, and of draws."""
        method, found = self.method, list[Extent]()
        if len(shared["effects.draws"]):
            found.append(self._point(self._fixed, method.parts(shared["effects.draws"])))
        if HEIGHTS in carried(method, shared):
            found.append(self._point(self._fixed, method.parts(shared["effects.points"])))
            if "effects.many_nodes" in shared:
                found.append(self._above(shared["effects.many_nodes"]))
        return found

    @property
    def _fixed(self) -> OwnRows:
        return OwnRows.of(self.method.network.split(self.inputs[None]).x[0])

    def _above(self, effects: Tensor) -> Extent:
        """Of effects of groups of clients, (..., q). A column of one value moves all rows alike, and cuts nothing."""
        columns = self.method.network.split(self.inputs[None]).of(OUTER)[0][0]
        varies = torch.tensor([len(column.unique()) > 1 for column in columns.unbind(-1)], dtype=torch.bool)
        return OwnRows.of(columns[:, varies]).extent(effects[..., varies]) if varies.any() else Extent(0.0, 0.0)

    @staticmethod
    def _point(rows: OwnRows, values: Mapping[str, Tensor]) -> Extent:
        return rows.extent(values["beta"], values.get("log_k"))


def broadcast_error(method: MixedModel, shared: State, inputs: Tensor) -> str:
    """Why no honest search makes a broadcast, without its values; empty where it may.

    Args:
        method: whose.
        shared: as broadcast, finite and of the right form.
        inputs: the client's rows, (n, width).
    """
    if float(shared["effects.phase"]) not in [float(known) for known in Phase]:
        return "its phase is none"
    if not method.likelihood.searches_beta or method.network.family == "lognormal":
        return ""
    ranges = SiteRanges(method, inputs)
    near, far = ranges.asked(shared), ranges.explored(shared)
    if all(found.is_within(ASKED) for found in near) and all(found.is_within(EXPLORED) for found in far):
        return ""
    return "its coefficients cut the rows at a value: no estimate is so large, unless covariates separate the outcomes"
