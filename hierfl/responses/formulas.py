"""Responses whose own numbers differ between rows, by formulas.

    g(number_ij) = d_ij^T gamma        g the logarithm, of p(zero) the logit

d are columns of the formula in the design's units, and gamma takes the number's position among those of the population.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.formula.grouping import Grouping
from ..data.formula.parsed import DISPERSION
from ..data.formula.units import INTERCEPT
from .base import Response, Rows

#: among the values of a response, what clients' own logarithms of the residual's standard deviation are more than the
#: formula of dispersion says, broadcast beside rows (..., S, n)
OWN_SPREAD = "own_spread"


class ByRow(dict[str, Tensor]):
    """Own numbers as each row has them."""


class WithFormulas(Response):
    """The part of such a response that knows its formulas; the other is the response's own class.

    Attributes:
        groupings: columns of each formula, by its name.
    """

    groupings: Mapping[str, Grouping]

    @property
    def of_values(self) -> dict[str, str]:
        """The formulas' names by the numbers that they are of."""
        return {value: name for name, value in self.formulas.items() if name in self.groupings}

    @property
    def starts(self) -> Mapping[str, Tensor]:
        """Coefficients for a number: of the intercept what the number begins with, else zeros."""
        starts = dict(super().starts)
        for value, name in self.of_values.items():
            grouping, start = self.groupings[name], starts[value]
            ones = [column in INTERCEPT for column in grouping.names]
            # Without an intercept all columns of a category begin there.
            share = [
                float(is_intercept) if any(ones) else scale
                for is_intercept, scale in zip(ones, grouping.units.scale, strict=True)
            ]
            starts[value] = start.double() * torch.tensor(share).double()
        return starts

    @property
    def slopes(self) -> tuple[int, ...]:
        """See :class:`.base.Response`."""
        places, first = list[int](), 0
        for value, start in self.starts.items():
            if value in self.of_values:
                names = self.groupings[self.of_values[value]].names
                places += [first + k for k, name in enumerate(names) if name not in INTERCEPT]
            first += start.numel()
        return tuple(places)

    def by_row(self, values: Mapping[str, Tensor], rows: Rows) -> ByRow:
        """Each number (..., S, n) that has a formula, of coefficients (..., m); others as they are."""
        if isinstance(values, ByRow):
            return values
        numbers = ByRow(values)
        for value, name in self.of_values.items():
            columns: Tensor = getattr(rows, name)
            total, gamma = columns[..., 0] * values[value][..., 0], values[value]
            for k in range(1, columns.shape[-1]):
                total = total + columns[..., k] * gamma[..., k]
            numbers[value] = total + values[OWN_SPREAD] if name == DISPERSION and OWN_SPREAD in values else total
        return numbers

    def for_means(self, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See :class:`.base.Response`."""
        return ByRow({name: value[..., 0] if name in self.of_values else value for name, value in values.items()})

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Any:
        """See :class:`.base.Response`."""
        return super().distribution(eta, self.by_row(values, rows), rows)

    def slope_and_weight(
        self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """See :class:`.base.Response`."""
        return super().slope_and_weight(eta, y, self.by_row(values, rows), rows)

    def safe_weight(self, eta: Tensor, y: Tensor, values: Mapping[str, Tensor], rows: Rows) -> Tensor:
        """See :class:`.base.Response`."""
        return super().safe_weight(eta, y, self.by_row(values, rows), rows)

    def own(self, names: Sequence[str], beta: Tensor, values: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Coefficients of the table's columns for a number, such as ``dispersion:arm[b]``."""
        plain = super().own(names, beta, values)
        own_numbers: dict[str, Tensor] = {}
        # A response reports its own numbers in the order in which it has them.
        for label, value in zip(plain, super().starts, strict=True):
            if value not in self.of_values:
                own_numbers[label] = plain[label]
                continue
            name = self.of_values[value]
            grouping = self.groupings[name]
            gamma = values[value] @ grouping.to_users(values[value]).T
            own_numbers |= {f"{name}:{column}": gamma[..., k] for k, column in enumerate(grouping.names)}
        return own_numbers

    def at_bound(self, name: str, value: float) -> str:
        """Returns whether a number without a formula is at its bound."""
        return "" if name.partition(":")[0] in self.groupings else super().at_bound(name, value)


def with_formulas(response: Response, groupings: Mapping[str, Grouping]) -> Response:
    """A response whose own numbers have these formulas.

    Args:
        response: as it is without.
        groupings: columns of each formula, by its name, a key of the response's ``formulas``.
    """
    kind: Any = type(f"{type(response).__name__}WithFormulas", (WithFormulas, type(response)), {})
    made: Response = kind.__new__(kind)
    made.__dict__.update(response.__dict__, groupings=dict(groupings))
    return made
