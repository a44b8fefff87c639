"""A response as a table has it, and as a model has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError

#: what a table calls a level
Label = str | int | float


@dataclass(frozen=True)
class Observed:
    """A table's response, as a model has it.

    Attributes:
        y: numbers (n,): successes where there are trials, levels from 1.
        trials: (n,); None where there are none.
        labels: of an ordinal response, what the table calls its levels, in their order.
    """

    y: np.ndarray
    trials: np.ndarray | None = None
    labels: tuple[Label, ...] = ()

    @property
    def levels(self) -> int:
        """The number of levels of an ordinal response, else 0."""
        return len(self.labels)


@dataclass(frozen=True)
class Cells:
    """A table's response, as formulae has read it.

    Attributes:
        name: of the response.
        kind: "numeric", "categoric" or "proportion".
        values: numbers (n,) or (n, 1); an indicator of each level; successes and trials.
        levels: of a categoric one.
        order: its levels in their order; None where the table has no order.
    """

    name: str
    kind: str
    values: np.ndarray
    levels: Sequence[object] = ()
    order: Sequence[Any] | None = None

    @classmethod
    def from_formulae(cls, response: Any, order: Sequence[Any] | None) -> Cells:
        """Returns the cells of formulae's response."""
        return cls(
            response.name, response.kind, np.asarray(response.design_matrix), response.levels or (), order
        )  # fmt: skip

    @property
    def column(self) -> np.ndarray:
        """The values of one column as (n,), others as they are."""
        return self.values[:, 0] if self.values.ndim == 2 and self.values.shape[1] == 1 else self.values

    def numbers(self, family: str) -> np.ndarray:
        """Finite numbers, (n,).

        Args:
            family: the response's, for the message.

        Raises:
            UserError: for others.
        """
        y = self.column
        if y.ndim != 1 or y.dtype.kind not in "biuf" or self.kind != "numeric":
            raise UserError(f"the response {self.name!r} holds no numbers; a {family} one needs them")
        y = y.astype(float)
        if not np.isfinite(y).all():
            raise UserError(f"the response {self.name!r} is not finite everywhere")
        return y


def check_above_zero(family: str, name: str, y: np.ndarray) -> None:
    """Refuses numbers (n,) that are not above zero.

    Raises:
        UserError: for them.
    """
    if not (y > 0).all():
        raise impossible(name, y, y > 0, f"a response of the family {family} is above zero")


def impossible(name: str, y: np.ndarray, fits: np.ndarray, rule: str) -> UserError:
    """The error for a response with numbers that the family does not have.

    Args:
        name: of the response.
        y: its numbers, (n,).
        fits: which of them the family has, (n,).
        rule: what the family has, in words.
    """
    return UserError(f"{rule}, and {name!r} is not in {int((~fits).sum())} of {len(y)} rows, such as {y[~fits][0]:g}")
