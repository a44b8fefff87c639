"""A fitted plain model in print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

#: columns of the globals' table
COLUMNS = ("name", "mean", "sd", "5 %", "95 %")


def number_names(name: str, shape: Sequence[int]) -> list[str]:
    """Names of a site's numbers, such as ``beta[0]``; the site's own of a single number."""
    return [f"{name}[{','.join(map(str, at))}]" if at else name for at in product(*map(range, shape))]


def summary_table(values: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """A row for each number of some sites, with :data:`COLUMNS`.

    Args:
        values: draws, {site: (draws, *shape)}.
    """
    import pandas as pd

    rows = []
    for name, value in values.items():
        flat = value.reshape(len(value), -1)
        lower, upper = np.quantile(flat, [0.05, 0.95], axis=0)
        numbers = number_names(name, value.shape[1:])
        sd = np.where(flat.min(0) == flat.max(0), 0.0, flat.std(0))  # the sd of equal draws is 0, not a rounding error
        rows += list(zip(numbers, flat.mean(0), sd, lower, upper, strict=True))
    return pd.DataFrame(rows, columns=list(COLUMNS))


@dataclass(frozen=True)
class ModelSummary:
    """Globals of a fit, and what the fit is worth.

    Attributes:
        name: of the model.
        description: the data and the fit.
        table: with :data:`COLUMNS`.
        notes: a line each.
    """

    name: str
    description: str
    table: pd.DataFrame
    notes: tuple[str, ...]

    def __str__(self) -> str:
        shown = self.table.set_index("name").rename_axis(None) if len(self.table) else None
        body = "no globals" if shown is None else shown.to_string(float_format=lambda value: f"{value:.4g}")
        return "\n".join([f"{self.name}: {self.description}", "", body, "", *self.notes]).rstrip()

    __repr__ = __str__
