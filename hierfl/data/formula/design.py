"""What the columns of a table's inputs are, as the architecture of a mixed-effects model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import UserError, unknown
from ...nn.architecture import Architecture
from ...nn.functional import Network
from ...nn.head import LinearHead
from ...responses.registry import check_columns, check_formulas, response_class
from .correlation import SERIES, TIME, Correlation
from .grouping import Grouping
from .parsed import ABOVE, CLIENT, DISPERSION, INNER, INSIDE, OUTER, SPREAD, ZERO_INFLATION
from .units import INTERCEPT, NO_UNITS, Units

#: the number of a response that is the logarithm of a residual's standard deviation
RESIDUAL = "log_noise"
#: what a row may have beside the columns of effects, in the order of the inputs' columns
EXTRAS = ("offset", "trials", "known", "event", "weight", "precision", INNER, OUTER, *INSIDE[1:], SERIES, TIME)


class Columns(NamedTuple):
    """What a design's columns are, for some rows.

    Attributes:
        x: of the fixed effects, in the design's units, (S, n, p).
        z: of the random effects, likewise, (S, n, q).
        offset: of the linear predictor, (S, n), as all that follows; None where there is none.
        trials: of which the response counts the successes.
        known: standard errors of the response.
        event: whether a time ended with one (1), or was cut off (0).
        weight: how many rows each one represents.
        precision: what the residual's variance is divided by.
        inner: which of its client's groups a row is of, from 1; 0 for one that is not among them.
        outer: which group of clients, likewise.
        z_inner, z_outer: of their random effects, (S, n, q).
        further: of other levels inside a client and above, by kind: columns of their random effects, and each row's
            group; None of a curve.
        dispersion, zero_inflation: of the formulas of own numbers, in the design's units, (S, n, m).
        series: which series of its client a row is of, from 1, where residuals correlate within series.
        time: its position there.
    """

    x: Tensor
    z: Tensor
    offset: Tensor | None = None
    trials: Tensor | None = None
    known: Tensor | None = None
    event: Tensor | None = None
    weight: Tensor | None = None
    precision: Tensor | None = None
    inner: Tensor | None = None
    outer: Tensor | None = None
    z_inner: Tensor | None = None
    z_outer: Tensor | None = None
    further: Mapping[str, tuple[Tensor, Tensor | None]] | None = None
    dispersion: Tensor | None = None
    zero_inflation: Tensor | None = None
    series: Tensor | None = None
    time: Tensor | None = None

    def for_level(self, level: str) -> tuple[Tensor, Tensor | None]:
        """Columns of a level's random effects, (S, n, q), and each row's group, (S, n); None for its client."""
        if self.further and level in self.further:
            return self.further[level]
        by_level = {CLIENT: (self.z, None), INNER: (self.z_inner, self.inner), OUTER: (self.z_outer, self.outer)}
        z, group = by_level[level]
        assert z is not None
        return z, group

    @property
    def single_client(self) -> Columns:
        """The columns of one client's rows without its dimension, (n, ...); without random effects of further
        levels.
        """
        fields: dict[str, Any] = {k: v[0] for k, v in self._asdict().items() if isinstance(v, Tensor)}
        return Columns(**fields)


@dataclass(frozen=True)
class Design(Architecture):
    """What the columns of a table's inputs are: [fixed | random | those of other levels | extras].

    Models are fitted to columns that are centred and scaled (:class:`Units`), whose coefficients say the same: where a
    table's columns lie is no matter.

    Attributes:
        fixed: names of the columns of x_ij.
        random: names of the columns of z_ij; last :data:`.parsed.SPREAD`, where clients have standard deviations of
            their own: of the inputs that is no column, and of z zeros.
        family: of the response.
        extras: what rows have beside effects, of :data:`EXTRAS` and in their order.
        levels: of an ordinal response, else 0.
        fixed_correlation: of the fixed columns in these units, row by row; empty where it is not known.
        labels: what the table calls these levels, in their order; empty for their numbers, from 1.
        centre, scale: about where the linear predictor lies, and how far it spreads: where a fit begins.
        blocks: how many random effects each random term of a client has; see :class:`.grouping.Grouping`.
        fixed_units, random_units: of the columns.
        inner: random effects of groups inside a client; None for none.
        outer: those of groups of clients.
        histogram: of the response, see :meth:`~hierfl.responses.base.Response.histogram`; empty where it has none.
        further: those of other levels inside a client than the first, in the order of :data:`.parsed.INSIDE`.
        dispersion, zero_inflation: columns of the formulas of own numbers; None for none.
        correlation: of the residuals of a series; None for none.
        above: curves beside ``outer``, in the order of :data:`.parsed.ABOVE`.
    """

    fixed: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    family: str = "gaussian"
    extras: tuple[str, ...] = ()
    levels: int = 0
    centre: float = 0.0
    scale: float = 1.0
    blocks: tuple[int, ...] = ()
    fixed_units: Units = NO_UNITS
    random_units: Units = NO_UNITS
    inner: Grouping | None = None
    outer: Grouping | None = None
    labels: tuple[str | int | float, ...] = ()
    fixed_correlation: tuple[tuple[float, ...], ...] = ()
    histogram: tuple[float, ...] = ()
    further: tuple[Grouping, ...] = ()
    dispersion: Grouping | None = None
    zero_inflation: Grouping | None = None
    correlation: Correlation | None = None
    above: tuple[Grouping, ...] = ()

    @classmethod
    def from_columns(
        cls, fixed: Sequence[str], random: Sequence[str], family: str = "gaussian", extras: Sequence[str] = (),
        levels: int = 0, centre: float = 0.0, scale: float = 1.0, blocks: Sequence[int] = (),
        fixed_units: Units | None = None, random_units: Units | None = None, inner: Grouping | None = None,
        outer: Grouping | None = None, labels: Sequence[str | int | float] = (),
        fixed_correlation: np.ndarray | None = None, histogram: Sequence[float] = (),
        further: Sequence[Grouping] = (), dispersion: Grouping | None = None, zero_inflation: Grouping | None = None,
        correlation: Correlation | None = None, above: Sequence[Grouping] = (),
    ) -> Design:  # fmt: skip
        """A design with these columns.

        Raises:
            UserError: without columns, for an unknown family, or for what it does not have or lacks.
        """
        if not fixed or not random:
            raise UserError("a mixed-effects design needs at least one fixed and one random column")
        response = response_class(family)
        if strange := [name for name in extras if name not in EXTRAS]:
            raise unknown("extra column", strange[0], EXTRAS)
        check_columns(family, extras)
        own = {DISPERSION: dispersion, ZERO_INFLATION: zero_inflation}
        check_formulas(family, [name for name, grouping in own.items() if grouping is not None], extras)
        if SPREAD in random and response.formulas.get(DISPERSION) != RESIDUAL:
            raise UserError(
                f"clients have a {DISPERSION} of their own where it is a residual's: not of a {family} response"
            )
        response.check_fixed(any(name in INTERCEPT for name in fixed))
        head, (p, q) = LinearHead(len(fixed) + len(random), 1), (len(fixed), len(random))
        return cls(
            Network(nn.Identity()), head, None, "design", fixed=tuple(fixed), random=tuple(random), family=family,
            extras=tuple(extras), levels=levels, centre=centre, scale=scale, blocks=tuple(blocks) or (q,),
            fixed_units=fixed_units or Units((0.0,) * p, (1.0,) * p),
            random_units=random_units or Units((0.0,) * q, (1.0,) * q), inner=inner, outer=outer,
            labels=tuple(labels), histogram=tuple(histogram),
            fixed_correlation=() if fixed_correlation is None else tuple(map(tuple, fixed_correlation.tolist())),
            further=tuple(further), dispersion=dispersion, zero_inflation=zero_inflation, correlation=correlation,
            above=tuple(above),
        )  # fmt: skip

    def split(self, inputs: Tensor) -> Columns:
        """The columns of rows (S, n, width)."""
        p = len(self.fixed)
        x, rest = self.fixed_units.of_columns(inputs[..., :p]), inputs[..., p:]
        z: dict[str, Tensor] = {}
        for level, grouping in {**self.groupings, **self.own}.items():
            if level == CLIENT and self.spread:
                columns = rest[..., : grouping.width - 1]
                z[level] = nn.functional.pad(grouping.units.without_last.of_columns(columns), (0, 1))
                rest = rest[..., grouping.width - 1 :]
                continue
            z[level] = grouping.units.of_columns(rest[..., : grouping.width])
            rest = rest[..., grouping.width :]
        more = dict(zip(self.extras, rest.unbind(-1), strict=True))
        for name in ("trials", "known", "weight", "precision"):
            if name in more:  # rows of a template have none
                more[name] = torch.where(more[name] > 0, more[name], 1.0)
        further = {kind: (z[kind], more.pop(kind, None)) for kind in (*INSIDE[1:], *ABOVE[1:]) if kind in z} or None
        own = {name: z[name] for name in self.own}
        return Columns(x, z[CLIENT], **more, z_inner=z.get(INNER), z_outer=z.get(OUTER), further=further, **own)

    @property
    def spread(self) -> bool:
        """Whether each client has a standard deviation of residuals of its own."""
        return SPREAD in self.random

    @property
    def own(self) -> dict[str, Grouping]:
        """Columns of the formulas of own numbers that there are, behind those of the levels."""
        by_name = {DISPERSION: self.dispersion, ZERO_INFLATION: self.zero_inflation}
        return {name: grouping for name, grouping in by_name.items() if grouping is not None}

    @property
    def groupings(self) -> dict[str, Grouping]:
        """The random effects of each level that there is, the clients' first."""
        units = self.random_units
        if self.spread:  # in the units of the response, as the other effects are
            q = len(self.random) - 1
            units = Units((*units.centre[:q], 0.0), (*units.scale[:q], self.scale))
        by_level = {CLIENT: Grouping(self.random, self.blocks, units), INNER: self.inner}
        by_level |= dict(zip(INSIDE[1:], self.further, strict=False)) | {OUTER: self.outer}
        by_level |= dict(zip(ABOVE[1:], self.above, strict=False))
        return {name: level for name, level in by_level.items() if level is not None}

    def uncorrelated(self) -> Design:
        """The same columns, without correlations of random effects; see :meth:`.grouping.Grouping.uncorrelated`."""
        by_level = {name: level.uncorrelated() for name, level in self.groupings.items()}
        own = by_level[CLIENT]
        return replace(
            self, blocks=own.blocks, random_units=own.units, inner=by_level.get(INNER), outer=by_level.get(OUTER),
            further=tuple(by_level[kind] for kind in INSIDE[1:] if kind in by_level),
            above=tuple(by_level[kind] for kind in ABOVE[1:] if kind in by_level),
        )  # fmt: skip

    def with_most(self, most: Mapping[str, int]) -> Design:
        """The same with so many groups of a client, at most, of each level inside."""
        by_level = {
            kind: replace(grouping, most=most[kind]) for kind, grouping in self.groupings.items() if kind in INSIDE
        }
        return replace(
            self, inner=by_level.get(INNER), further=tuple(by_level[kind] for kind in INSIDE[1:] if kind in by_level)
        )

    @property
    def known(self) -> bool:
        """Whether the response's standard errors are known."""
        return "known" in self.extras

    @property
    def width(self) -> int:
        """Columns of the inputs."""
        groups = {**self.groupings, **self.own}.values()
        return len(self.fixed) + sum(grouping.width for grouping in groups) + len(self.extras) - self.spread

    @property
    def offset(self) -> float:
        """What is added to every linear predictor: where there is an intercept, coefficients are around the centre."""
        return self.centre if any(name in INTERCEPT for name in self.fixed) else 0.0
