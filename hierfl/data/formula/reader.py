"""What makes a design's columns of other rows than those that were fitted."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ...responses.reading import Cells, Observed
from ...responses.registry import response_class
from ..column_names import as_table, no_column, one_column
from ..far_numbers import warn_of_far
from ..spellings import Spellings
from . import gate
from .column_types import ColumnTypes, typed, typed_columns
from .columns import check_numbers, check_offset, effects_and_offset, random_columns, with_smooths
from .correlation import SERIES, TIME
from .groups import Groups
from .literals import category_columns
from .missing import lacks_values
from .parsed import Formula
from .rank import IndependentColumns
from .row_numbers import RowColumns, in_order
from .smooth import SmoothBasis
from .spelled import as_fitted
from .trials import trials_of

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")


def order_of(df: pd.DataFrame, terms: Formula) -> list[Any] | None:
    """The levels of a response that is a category whose levels are in order; None of another one."""
    orders = [
        df[name].cat.categories.tolist() for name in terms.response or () if getattr(df[name].dtype, "ordered", 0)
    ]
    return orders[0] if orders else None


@dataclass(frozen=True)
class Reader:
    """Makes the design's columns of other rows of such a table; they need no response, and no client.

    Attributes:
        read: formulae's design matrices of the table that was fitted.
        groups: its random columns, level by level and term by term.
        extras: what rows have beside effects; see :class:`.design.Design`.
        more: the columns that some of them are.
        formula: as it was written.
        places: which groups there were.
        independent: which of the fixed columns there are in the design; None for all.
        types: of the predictors.
        spellings: what became of names that are spelled alike.
        means: of the predictors that are numbers, over all rows; empty where rows are not in one place.
        smooths: columns of the smooth terms, by kind of level.
        spread: means and standard deviations of the same predictors; empty likewise.
    """

    read: Any
    groups: Mapping[str, tuple[Any, ...]]
    extras: tuple[str, ...]
    more: RowColumns
    formula: str
    places: Groups
    independent: IndependentColumns | None = None
    types: ColumnTypes = field(default_factory=ColumnTypes)
    spellings: Spellings = field(default_factory=lambda: Spellings("keep"))
    means: Mapping[str, float] = field(default_factory=dict)
    smooths: Mapping[str, SmoothBasis] = field(default_factory=dict)
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def prepared(self, df: pd.DataFrame) -> pd.DataFrame:
        """Rows with predictors of the fit's types, and with names in its spelling.

        Raises:
            UserError: for a table that lacks a column, holds missing values, or holds columns of other types.
        """
        df = as_table(df)
        names = sorted(gate.parse(self.formula).predictors)
        for name in names:
            if name not in df.columns:
                raise no_column(name, df.columns, "the table lacks column")
            if missing := int(one_column(df, name).isna().sum()):
                raise lacks_values(name, missing)
        columns = typed_columns(df, gate.parse(self.formula), names)
        categories = category_columns(gate.parse(self.formula))
        for name in names if len(df) else ():
            columns[name] = self.types.as_fitted(name, columns[name], name in categories)
            if columns[name].dtype.kind in "iuf":
                check_numbers(f"column {name!r}", columns[name].to_numpy(dtype=float))
        # Clients that are whole numbers stay so, where they are a predictor, too.
        values = {name: columns[name] for name in names if name not in gate.parse(self.formula).places}
        return as_fitted(df.assign(**values), self.types, self.places, self.spellings)

    def __call__(self, df: pd.DataFrame) -> np.ndarray:
        """Rows to predict, (n, width): events, each for itself, of one trial where the table has no trials.

        Raises:
            UserError: for a table that lacks a column or holds missing values or levels that are not known, and for
                rows in which a column that was dropped is not the combination that it was in the fit.
        """
        terms, df = gate.parse(self.formula), self.prepared(df)
        if not len(df):
            raise UserError("there are no rows to predict for")
        warn_of_far(df, self.spread)
        columns, offset = self.effects(df, check=True)
        for column in columns.T:
            check_numbers("an effect of the new rows", column)
        ones = np.ones(len(df))
        rows: dict[str, np.ndarray | None] = {"offset": offset, "trials": ones, "event": ones, "weight": ones}
        # A row to predict is by itself: what other rows of its series say of it is not used.
        rows |= {SERIES: ones, TIME: ones}
        rows |= self.places.numbers(df)
        for line in self.places.strangers(df):
            log.warning("%s", line)
        for role in ("known_se", "precision_weights"):
            if not (name := getattr(self.more, role)):
                continue
            if name not in df.columns:
                raise no_column(name, df.columns, "the table lacks column")
            rows |= RowColumns(**{role: name}).numbers(typed(df, terms, [name]))
        if "trials" in self.extras and (trials := trials_of(self.formula, df)) is not None:
            rows["trials"] = trials
        return np.column_stack([columns, *(numbers for name, numbers in in_order(rows).items() if name in self.extras)])

    def effects(self, df: pd.DataFrame, *, check: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        """The columns of effects (n, p + q + those of other levels), and the offset (n,); None without one.

        Args:
            df: a table with the predictors.
            check: whether columns that were dropped have to be the combinations that they were.

        Raises:
            UserError: for a table that lacks a column or holds missing values or levels that are not known.
        """
        fixed, random, offset = self._evaluated(self.prepared(df))
        columns = fixed
        if self.independent is not None:
            columns = self.independent.checked(columns) if check else columns[:, self.independent.kept]
        return np.column_stack([columns, *random]), offset

    def all_fixed(self, df: pd.DataFrame) -> tuple[np.ndarray, np.ndarray | None]:
        """All fixed columns (n, p), those that were dropped among them, and the offset (n,); None without one.

        Args:
            df: a table with the predictors.

        Raises:
            UserError: as :meth:`effects`.
        """
        fixed, _, offset = self._evaluated(self.prepared(df))
        return fixed, offset

    def _evaluated(self, df: pd.DataFrame) -> tuple[np.ndarray, list[np.ndarray], np.ndarray | None]:
        """All fixed columns (n, p), each random one (n,), level by level, and the offset (n,), of prepared rows."""
        terms = gate.parse(self.formula)
        values = dict(typed(df, terms, sorted(terms.predictors)))
        # The order of a category's levels is the fit's.
        values |= {k: v.astype(v.cat.categories.dtype) for k, v in values.items() if hasattr(v, "cat")}
        # The column that represents the clients' in formulae's terms.
        ones = {term.factor.name: 0 for group in self._all_groups for term in group.terms.values()}
        table = df.assign(**values, **ones)
        try:
            with gate.quietly():
                fixed, offset = effects_and_offset(self.read.common.evaluate_new_data(table))
                of_levels = {
                    level: random_columns([group.evaluate_new_data(table) for group in groups])
                    for level, groups in self.groups.items()
                }
                of_levels = with_smooths(of_levels, self.smooths, table)
                random = [column for columns, _ in of_levels.values() for column in columns.values()]
        except Exception as fault:  # whatever formulae says
            if strange := re.search(r"levels \((.*?)\) in '(.+?)' are not present", str(fault)):
                levels = self.types.levels.get(strange[2], ())
                present = df[strange[2]].tolist() if strange[2] in df.columns else strange[1].split(", ")
                (level, *_) = sorted({str(value) for value in present if value not in levels})
                what = f"column {strange[2]!r} has the level {level!r}"
                raise UserError(f"{what}, which was in no row of the fit: it has no coefficient") from fault
            raise gate.misfit(terms, fault) from fault
        if offset is not None:
            check_offset(offset)
        return fixed.to_numpy(), random, offset

    @property
    def dropped(self) -> list[str]:
        """Which fixed columns were dropped, and why: a sentence for each; categories of one level have no column."""
        if self.independent is None:
            return []
        empty = [name for name, at in self.read.common.slices.items() if at.start == at.stop]
        alone = [f"{name!r} has one level in all rows, and was dropped" for name in empty]
        return [*self.independent.dropped.values(), *alone]

    @property
    def _all_groups(self) -> list[Any]:
        return [group for of_level in self.groups.values() for group in of_level]

    def response(self, df: pd.DataFrame, family: str) -> Observed:
        """The response of such a table.

        Raises:
            UserError: for one that the family cannot have.
        """
        left = gate.response_alone(gate.parse(self.formula))
        return response_class(family).read(Cells.from_formulae(gate.evaluate(left, df).response, order_of(df, left)))
