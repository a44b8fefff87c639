"""What each row of a table has beside its response and the columns of its effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ...responses.registry import check_columns
from .columns import check_numbers
from .correlation import Correlation
from .design import EXTRAS

if TYPE_CHECKING:
    import pandas as pd

    from .parsed import Formula

#: of each role: its name among :class:`.design.Columns`, and what its column holds
ROLES = {
    "known_se": ("known", "standard errors"),
    "event": ("event", "events"),
    "weights": ("weight", "weights"),
    "precision_weights": ("precision", "precision weights"),
}


@dataclass(frozen=True)
class RowColumns:
    """Columns of a table that a formula does not name; empty for none.

    Attributes:
        known_se: known standard errors of a gaussian response.
        event: of a time until something happens, whether it did (1), or was not seen by then (0).
        weights: how many rows each one represents: so often its log density counts.
        precision_weights: of a gaussian or log-normal response, what its variance is divided by.
        correlation: of residuals, as :mod:`.correlation` has it written; its columns are the time and the group.
    """

    known_se: str = ""
    event: str = ""
    weights: str = ""
    precision_weights: str = ""
    correlation: str = ""

    @property
    def names(self) -> dict[str, str]:
        """The columns that are said, by the names of :class:`.design.Columns`."""
        return {key: name for role, (key, _) in ROLES.items() if (name := getattr(self, role))}

    @property
    def columns(self) -> set[str]:
        """Those of the table."""
        return set(self.names.values()) | (self.correlated.columns if self.correlated else set())

    def check(self, family: str) -> None:
        """Refuses what a family's rows do not have.

        Raises:
            UserError: for it.
        """
        for role in ROLES:
            if not isinstance(name := getattr(self, role), str):
                raise UserError(f"{role} is the name of a column, not {type(name).__name__}")
        check_columns(family, self.names)
        if self.correlated:
            self.correlated.check(family, self.names)

    @property
    def correlated(self) -> Correlation | None:
        """How residuals correlate; None where they do not."""
        return Correlation.parse(self.correlation)

    @property
    def groups(self) -> set[str]:
        """The columns that hold names, not numbers."""
        return {self.correlated.group} - {""} if self.correlated else set()

    def beside(self, terms: Formula) -> RowColumns:
        """These columns, without the weights of a response that is a share: ``k / n`` with the weights n is p(k, n).

        Args:
            terms: of the formula.

        Raises:
            UserError: for a share without them.
        """
        if not terms.share:
            return self
        if self.weights != terms.share:
            left, _, right = terms.text.partition("~")
            won = left.partition("/")[0].strip()
            raise UserError(
                f"{left.strip()} is a share of {terms.share!r}: write 'p({won}, {terms.share}) ~{right}', or say "
                f"weights={terms.share!r} as in R; a ratio that is a number is I({left.strip()})"
            )
        return replace(self, weights="")

    def numbers(self, df: pd.DataFrame) -> dict[str, np.ndarray]:
        """Each role's numbers (n,), by the names of :class:`.design.Columns`.

        Raises:
            UserError: for a column that holds others than its role can have.
        """
        numbers = {}
        words = dict(ROLES.values())
        for key, name in self.names.items():
            what = words[key]
            if df[name].dtype.kind not in "biuf":
                raise UserError(f"column {name!r} holds no numbers, so it cannot hold {what}: {_way(key, df[name])}")
            values = df[name].to_numpy(dtype=float)
            if key == "event":
                if not np.isin(values, (0.0, 1.0)).all():
                    raise UserError(f"column {name!r} holds events that are not 0 or 1: {_way(key, df[name])}")
            elif (odd := ~(np.isfinite(values) & (values > 0))).any():
                raise UserError(
                    f"column {name!r} holds {what} that are not above zero, or infinite, in {int(odd.sum())} of "
                    f"{len(values)} rows, such as {values[odd][0]:g}: leave these rows out"
                )
            else:
                for extreme in (values.min(), values.max()):
                    check_numbers(f"column {name!r}", np.array([extreme]))
            numbers[key] = values
        return numbers


def _way(key: str, column: pd.Series) -> str:
    """How a column becomes what its role needs."""
    frame_column, value = f"df[{column.name!r}]", sorted(column.unique().tolist(), key=str)[-1]
    if key == "event":
        return f"{frame_column} = ({frame_column} == {value!r}).astype(int), if {value!r} is the event"
    return f"{frame_column} = {frame_column}.astype(float), of text that is written as numbers"


def in_order(rows: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """Those that are there, in the order of the columns of a design's inputs."""
    return {name: values for name in EXTRAS if (values := rows.get(name)) is not None}
