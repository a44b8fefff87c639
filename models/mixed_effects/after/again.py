"""A fit that is made again, or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierfl.argument_types import typed_call
from hierfl.errors import UserError
from hierfl.files import user_path
from hierfl.inference.run.result import Run

from . import saved
from .updated import updated

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Origin:
    """How a fit was asked for.

    Attributes:
        fit: what fits a table by a formula.
        df: the table, as it was given.
        how: the other arguments.
    """

    fit: Callable[..., Any]
    df: pd.DataFrame
    how: Mapping[str, Any]


class MadeAgain:
    """A fit that knows what it was made of."""

    run: Run
    formula: str
    origin: Origin | None

    @typed_call
    def refit(self, update: str = "~ .", df: pd.DataFrame | None = None, **changes: Any) -> Any:
        """The same model fitted again, with another formula, table or setting.

        Args:
            update: of the formula: "." is what it had on that side, as in ``"~ . - x"`` or ``"~ . + z - (1 | site)"``.
            df: another table; None for that of the fit.
            **changes: arguments of :func:`~hierfl.models.mixed_effects.mixed_model.mixed_model`.

        Returns:
            A :class:`~hierfl.models.mixed_effects.fitted_model.FittedMixedModel`.

        Raises:
            UserError: as ``mixed_model``; for a fit that was not made by it.
        """
        if self.origin is None:
            raise UserError("this fit was not made by mixed_model(df, formula): nothing says how to make it again")
        formula = changes.pop("formula", None) or updated(self.formula, update)
        table = self.origin.df if df is None else df
        return self.origin.fit(table, formula, **{**self.origin.how, **changes})

    @typed_call
    def save(self, folder: str | Path) -> None:
        """Writes the fit without its rows: :func:`hierfl.load_mixed_model` reads it, with or without its table.

        Args:
            folder: made if missing; an earlier fit there is replaced.

        Raises:
            UserError: for a fit that was not made by ``mixed_model``.
        """
        if self.origin is None:
            raise UserError("this fit was not made by mixed_model(df, formula): its run folder is what is saved of it")
        saved.save(self.run, self.formula, self.origin.how, self.origin.df, user_path(folder))
