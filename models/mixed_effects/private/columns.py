"""The row that a client's sums of products are of, in [-1, 1] by declared ranges.

    v = [C y],    C = [1 c_2 ... c_c],    X = C T,    Z = C R,    |v|^2 <= B                                (p1)

C are the distinct columns of fixed and random effects. T and R are known: the design's units are made of the ranges.
Columns of one factor's levels count once in B, since at most one of them is not zero in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hierfl.data.batch import Batch
from hierfl.data.formula.design import Design
from hierfl.data.formula.units import INTERCEPT, Units

from .ranges import Range, Ranges, alone, range_of

#: a response's spread over half of its range, about: where a search begins
SPREAD = 1 / 3


@dataclass(frozen=True)
class ScaledColumns:
    """Columns C and the response, scaled by their ranges.

    Attributes:
        names: of C, the intercept first.
        places: where each is among a batch's inputs; -1 for a column of ones.
        middle, half: v = (value - middle) / half, of C and the response, (c + 1,).
        least: of v, -1 or 0, (c + 1,).
        most: B, the largest |v|^2.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    middle: tuple[float, ...]
    half: tuple[float, ...]
    least: tuple[float, ...]
    most: float

    @classmethod
    def from_design(cls, design: Design, response: Range, ranges: Ranges) -> ScaledColumns:
        """Returns the columns of a design with random effects of one level.

        Args:
            design: whose columns.
            response: its range.
            ranges: of the table's columns.

        Raises:
            UserError: for a column whose range is not declared.
        """
        places: dict[str, int] = {}
        for k, name in enumerate((*design.fixed, *design.random)):
            places.setdefault("Intercept" if name in INTERCEPT else name, k)
        names = ("Intercept", *(name for name in places if name != "Intercept"))
        own, middle, half, least, squares = alone(names[1:], ranges), [0.0], [1.0], [1.0], {"Intercept": 1.0}
        for name in names[1:]:
            column_range = range_of(name, ranges)
            if own[name]:
                middle.append((column_range.least + column_range.most) / 2)
                half.append((column_range.most - column_range.least) / 2)
                least.append(-1.0)
            else:  # zero stays zero, so that columns of other levels add nothing
                middle.append(0.0)
                half.append(max(abs(column_range.least), abs(column_range.most)))
                least.append(0.0 if column_range.least >= 0 else -1.0)
            squares[column_range.levels or name] = 1.0
        middle.append((response.least + response.most) / 2)
        half.append((response.most - response.least) / 2)
        return cls(
            names, tuple(places.get(name, -1) for name in names), tuple(middle), tuple(half), (*least, -1.0),
            sum(squares.values()) + 1.0,
        )  # fmt: skip

    def rows(self, batch: Batch) -> Tensor:
        """v of rows (S, n, c + 1), within the ranges and |v|^2 <= B; zero where there is no row."""
        ones = torch.ones_like(batch.y)
        raw = torch.stack([ones if k < 0 else batch.x[..., k] for k in self.places] + [batch.y], -1)
        middle, half, least = (raw.new_tensor(values) for values in (self.middle, self.half, self.least))
        v = ((raw - middle) / half).maximum(least).clamp(max=1.0)
        v = v * (self.most / v.square().sum(-1, keepdim=True)).sqrt().clamp(max=1.0)
        return v if batch.mask is None else torch.where(batch.mask[..., None], v, 0.0)

    def scaled(self, batch: Batch) -> Tensor:
        """C of rows (S, n, c), within the ranges and |c|^2 <= B - 1."""
        ones = torch.ones_like(batch.y)
        raw = torch.stack([ones if k < 0 else batch.x[..., k] for k in self.places], -1)
        middle, half, least = (raw.new_tensor(values[:-1]) for values in (self.middle, self.half, self.least))
        c = ((raw - middle) / half).maximum(least).clamp(max=1.0)
        return c * ((self.most - 1) / c.square().sum(-1, keepdim=True)).sqrt().clamp(max=1.0)

    def outside(self, batch: Batch) -> Tensor:
        """Rows (S,) of which a value lies outside its range."""
        raw = torch.stack([batch.y, *(batch.x[..., k] for k in self.places[1:])], -1)
        order = [-1, *range(1, len(self.places))]
        middle, half, least = (
            raw.new_tensor([values[k] for k in order]) for values in (self.middle, self.half, self.least)
        )
        v = (raw - middle) / half
        beyond = ((v < least - 1e-9) | (v > 1 + 1e-9)).any(-1)
        return (beyond if batch.mask is None else beyond & batch.mask).sum(-1)

    def of_design(self, names: Sequence[str], units: Units) -> Tensor:
        """The matrix (c, k) with columns of a design = C times it.

        Args:
            names: of the columns.
            units: in which the design has them.
        """
        matrix = torch.zeros(len(self.names), len(names), dtype=torch.float64)
        for k, name in enumerate(names):
            centre, scale = units.centre[k], units.scale[k]
            if name in INTERCEPT:
                matrix[0, k] = (1 - centre) / scale
            else:
                at = self.names.index(name)
                matrix[0, k] = (self.middle[at] - centre) / scale
                matrix[at, k] = self.half[at] / scale
        return matrix

    def design(self, network: Design) -> Design:
        """The same design, whose units and first values are of ranges alone."""

        def units(names: Sequence[str], blocks: Sequence[int]) -> Units:
            centre, scale, first = [], [], 0
            for size in blocks:
                block = names[first : first + size]
                movable = any(name in INTERCEPT for name in block)
                for name in block:
                    at = 0 if name in INTERCEPT else self.names.index(name)
                    centre.append(self.middle[at] if movable and at else 0.0)
                    scale.append(self.half[at])
                first += size
            return Units(tuple(centre), tuple(scale))

        gaussian = network.family == "gaussian"
        return replace(
            network, centre=self.middle[-1] if gaussian else 0.0, scale=SPREAD * self.half[-1] if gaussian else 1.0,
            fixed_correlation=(),
            fixed_units=units(network.fixed, (len(network.fixed),)),
            random_units=units(network.random, network.blocks),
        )  # fmt: skip
