"""Broadcasts that an honest search never makes: coefficients so large that they split a site's rows at a value.

The likelihood of a binary outcome with a coefficient of 300 on age counts the patients above an age, and a few such
counts are the ages. Estimates do not cut: the linear predictor of a site's rows has no large spread. Three numbers are
bounded, and :data:`ASKED` and :data:`EXPLORED` are above what honest fits have been measured to ask for
(tests/support/honest_points.py):

    steepness    the spread over the site's own rows of the linear predictor, by columns of more than two values
    reach        the largest other coefficient, in units in which columns have a spread of one; of groups of clients
                 those of columns alone that differ between rows: few groups leave their deviation open
                 (of a response with units both are over the width of its peak, as is the spread of the site's y)
    power        of Weibull times the logarithm of the power of time: large ones single out the longest time

The site's own rows decide. Units come from totals of all sites, which a dishonest server may choose freely.
Roots of covariances are not bounded: a wide prior cuts nothing. Of gaussian and lognormal responses likelihoods are
quadratic in coefficients, which cut nothing either; coefficients of formulas of own numbers are bounded in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hierfl.inference.state import State

from ..likelihood.gaussian.crossed import by_level
from ..model.equations import MixedModel
from ..model.levels import Level
from .requests import HEIGHTS, Phase, carried

#: responses whose likelihood is quadratic in coefficients
QUADRATIC = ("gaussian", "lognormal")
#: shared values that are as long as a point, beside the estimates
POINTS = ("at", "restricted")
#: effects of groups at one point, and at many
EFFECTS, MANY_EFFECTS = ("nodes", "crossed_at"), ("many_nodes", "crossed_points")


class Extent(NamedTuple):
    """How large coefficients are.

    Attributes:
        steepness, reach, power: as above, of the largest point.
    """

    steepness: float
    reach: float
    power: float = 0.0

    def is_within(self, most: Extent) -> bool:
        """Whether no coefficient is larger than these."""
        return all(value <= bound for value, bound in zip(self, most, strict=True))


#: the most of a point with derivatives, and of a point that is explored
ASKED, EXPLORED = Extent(6.0, 60.0, 3.0), Extent(8.0, 120.0, 5.0)


@dataclass(frozen=True)
class OwnRows:
    """One client's columns.

    Attributes:
        columns: in the design's units, (n, p).
        numeric: which columns have more than two values at this client, (p,).
    """

    columns: Tensor
    numeric: Tensor

    @classmethod
    def from_columns(cls, columns: Tensor) -> OwnRows:
        """Columns (n, p)."""
        many = [len(column.unique()) > 2 for column in columns.unbind(-1)]
        return cls(columns, torch.tensor(many, dtype=torch.bool))

    def extent(self, coefficients: Tensor, power: Tensor | None = None) -> Extent:
        """The largest extent of points (..., p) with the logarithms of their powers of time, (...)."""
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
    """Checks of broadcasts against one client's rows.

    Args:
        method: whose.
        inputs: the client's rows, (n, width).
    """

    method: MixedModel
    inputs: Tensor

    def asked(self, shared: State) -> list[Extent]:
        """The extents of points with derivatives, and of estimates."""
        method, rows = self.method, self._fixed
        extents = [self._point(rows, values) for values in self.near(shared)]
        for level in method.above:
            extents.append(self._above(shared, level, shared[f"effects.{level.effects}"]))
        return [*extents, *(self._above(shared, *pair) for pair in self._asked(shared, EFFECTS))]

    def explored(self, shared: State) -> list[Extent]:
        """The extents of points that are explored, and of draws."""
        extents = [self._point(self._fixed, values) for values in self.far(shared)]
        if HEIGHTS in carried(self.method, shared):
            extents += [self._above(shared, *pair) for pair in self._asked(shared, MANY_EFFECTS)]
        return extents

    def near(self, shared: State) -> list[State]:
        """Points with derivatives, and the estimates, by their short names."""
        points = [self.method.parts(shared[f"effects.{k}"]) for k in POINTS if f"effects.{k}" in shared]
        return [*points, self._estimates(shared)]

    def far(self, shared: State) -> list[State]:
        """Points that are explored, and draws."""
        points = [shared["effects.draws"]] if len(shared["effects.draws"]) else []
        points += [shared["effects.points"]] if HEIGHTS in carried(self.method, shared) else []
        return [self.method.parts(numbers) for numbers in points]

    def of_formulas(self, shared: State) -> tuple[list[Extent], list[Extent]]:
        """The extents of the formulas of own numbers: points with derivatives, and points that are explored."""
        method = self.method
        columns = method.network.split(self.inputs[None])
        near, far = list[Extent](), list[Extent]()
        for name in method.network.own:
            rows = OwnRows.from_columns(getattr(columns, name)[0])
            value = method.response_family.formulas[name]
            near += [
                rows.extent(method.parts(shared[f"effects.{k}"])[value]) for k in POINTS if f"effects.{k}" in shared
            ]
            near.append(rows.extent(shared[f"effects.{value}"]))
            if len(shared["effects.draws"]):
                far.append(rows.extent(method.parts(shared["effects.draws"])[value]))
            if HEIGHTS in carried(method, shared):
                far.append(rows.extent(method.parts(shared["effects.points"])[value]))
        return near, far

    @property
    def _fixed(self) -> OwnRows:
        return OwnRows.from_columns(self.method.network.split(self.inputs[None]).x[0])

    def _estimates(self, shared: State) -> State:
        return {k: shared[f"effects.{k}"] for k in self.method.sizes if f"effects.{k}" in shared}

    def _above(self, shared: State, level: Level, effects: Tensor) -> Extent:
        """The extent of effects of groups of clients, (..., q). A column of one value moves all rows alike, and cuts
        nothing.

        Of groups that cross the clients it moves those of one group: their effects reach.
        """
        columns = self.method.network.split(self.inputs[None]).for_level(level.kind)[0][0]
        width = self.method.response_family.width(self._estimates(shared))
        effects = effects if width is None else effects / width
        if level.smooth:
            return OwnRows.from_columns(columns).extent(effects.flatten(-2)[..., -level.groups :])
        varies = torch.tensor([len(column.unique()) > 1 for column in columns.unbind(-1)], dtype=torch.bool)
        extent = (
            OwnRows.from_columns(columns[:, varies]).extent(effects[..., varies]) if varies.any() else Extent(0.0, 0.0)
        )
        return extent._replace(reach=max(extent.reach, _most(effects.abs()))) if level.crossed else extent

    def _asked(self, shared: State, names: Sequence[str]) -> list[tuple[Level, Tensor]]:
        """Effects of groups at which clients answer, by level, (..., q)."""
        values, above = [shared[f"effects.{name}"] for name in names if f"effects.{name}" in shared], self.method.above
        if not all(level.crossed for level in above):
            return [(level, effects) for effects in values for level in above]
        return [pair for effects in values for pair in by_level(self.method, effects).items()]

    def _point(self, rows: OwnRows, values: Mapping[str, Tensor]) -> Extent:
        width = self.method.response_family.width(values)
        beta = values["beta"] if width is None else values["beta"] / width.reshape(*values["beta"].shape[:-1], 1)
        return rows.extent(beta, values.get("log_k"))


def response_error(method: MixedModel, shared: State, y: Tensor) -> str:
    """The same of the site's own responses, where the linear predictor has their units; see :data:`ASKED`.

    Args:
        method: whose.
        shared: as broadcast, finite and of the right form.
        y: the client's responses, (n,).
    """
    ranges, family = SiteRanges(method, y[:, None]), method.response_family
    for points, most in ((ranges.near(shared), ASKED), (ranges.far(shared), EXPLORED)):
        for values in points:
            width = family.width(values)
            if width is not None and width.numel() and float(y.std(correction=0) / width.min()) > most.steepness:
                return "its scale is so small beside the responses' spread that it cuts them at a value"
    return ""


def broadcast_error(method: MixedModel, shared: State, inputs: Tensor) -> str:
    """Reason why no honest search makes a broadcast, without the broadcast's values; empty where one may.

    Args:
        method: whose.
        shared: as broadcast, finite and of the right form.
        inputs: the client's rows, (n, width).
    """
    if float(shared["effects.phase"]) not in [float(phase) for phase in Phase]:
        return "its phase is none"
    ranges = SiteRanges(method, inputs)
    near, far = ranges.of_formulas(shared)
    if method.likelihood.searches_beta and method.response_family.name not in QUADRATIC:
        near, far = [*near, *ranges.asked(shared)], [*far, *ranges.explored(shared)]
    if all(extent.is_within(ASKED) for extent in near) and all(extent.is_within(EXPLORED) for extent in far):
        return ""
    return "its coefficients cut the rows at a value: no estimate is so large, unless covariates separate the outcomes"
