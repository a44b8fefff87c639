"""A fitted mixed model without the rows that it was fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.argument_types import typed_call

from .after.rowless import needs_rows
from .fitted_model import FittedMixedModel

if TYPE_CHECKING:
    import pandas as pd


class RowlessMixedModel(FittedMixedModel):
    """Answers what needs no row: all of :class:`.fitted_model.FittedMixedModel` but what says so in one line.

    ``predict``, ``fitted``, ``residuals`` and ``simulate`` are of a table that is given.
    """

    @typed_call
    def refit(self, update: str = "~ .", df: pd.DataFrame | None = None, **changes: Any) -> Any:
        """Refused: a fit is made again of its table."""
        raise needs_rows("refit")

    @typed_call
    def save(self, folder: str | Path) -> None:
        """Refused: its folder is there."""
        raise needs_rows("save")

    @typed_call
    def shrinkage(self) -> pd.DataFrame:
        """Refused: a client's own coefficients are of its rows."""
        raise needs_rows("shrinkage")

    @typed_call
    def compare(self, other: FittedMixedModel, *_: Any, **__: Any) -> pd.DataFrame:
        """Refused: whether two fits are of the same rows is seen on them."""
        raise needs_rows("compare")

    @typed_call
    def posterior(self, **how: Any) -> Any:
        """Refused: what ArviZ is given has rows."""
        raise needs_rows("posterior")
