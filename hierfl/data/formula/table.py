"""A table, read by a formula: the columns of its effects, its response, and whose its rows are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ...responses.reading import Cells, Observed
from ...responses.registry import response_class
from ..client_names import client_names, refuse_totals
from ..spellings import Spellings
from . import gate
from .ambiguous import check_unambiguous
from .column_types import ColumnTypes, truth_columns
from .columns import (
    check_numbers,
    check_offset,
    effects_and_offset,
    random_columns,
    random_terms,
    read_terms,
    with_smooths,
)
from .correlation import SERIES
from .design import Design
from .groups import Groups, by_field
from .groups_checked import check_groups
from .own_numbers import check_formula_rank
from .parsed import CLIENT, KINDS, OWN_FORMULAS, Formula, Levels
from .rank import IndependentColumns
from .reader import Reader, order_of
from .row_numbers import RowColumns, in_order
from .smooth import Smooth, SmoothBasis, smooth_bases
from .units import Units

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FormulaTable:
    """What a formula makes of a table.

    Attributes:
        family: of the response.
        more: columns that the formula does not name.
        levels: of grouping.
        read: formulae's design matrices.
        terms: formulae's random columns, level by level and term by term.
        fixed: independent columns of the fixed effects.
        independent: which of all columns they are.
        random: of each level, columns of the random effects, (n,) each, and how many each term has.
        name: of the response.
        response: its numbers.
        rows: what rows have beside effects, by the names of :class:`.design.Columns`.
        who: client of each row, (n,).
        places: groups inside clients, and of clients.
        types: of the predictors.
        spellings: what became of names that are spelled alike.
        means: of the predictors that are numbers.
        smooths: columns of the smooth terms, for other rows, by kind of level.
        spread: means and standard deviations of the predictors that are numbers.
    """

    family: str
    more: RowColumns
    levels: Levels
    read: Any
    terms: Mapping[str, tuple[Any, ...]]
    fixed: pd.DataFrame
    independent: IndependentColumns
    random: Mapping[str, tuple[dict[str, np.ndarray], tuple[int, ...]]]
    name: str
    response: Observed
    rows: Mapping[str, np.ndarray]
    who: np.ndarray
    places: Groups
    types: ColumnTypes
    spellings: Spellings
    means: Mapping[str, float]
    smooths: Mapping[str, SmoothBasis] = field(default_factory=dict)
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def read_from(
        cls, df: pd.DataFrame, formula: Formula, client: str | None, more: RowColumns, family: str,
        spellings: Spellings,
    ) -> FormulaTable:  # fmt: skip
        """Reads a table without missing values.

        Args:
            df: the table.
            formula: as it was parsed.
            client: the clients' column; by default the outermost of the random terms'.
            more: columns that the formula does not name.
            family: of the response.
            spellings: what became of names that are spelled alike.

        Raises:
            UserError: for columns that are not there, do not fit together, or hold what they cannot.
        """
        read, levels, typed = read_terms(df, formula, client, more.columns)
        truths = truth_columns(df, formula.predictors)
        try:
            terms = random_terms(formula, levels, read, typed)
            check_unambiguous(read, terms, truths)
            fixed, offset = effects_and_offset(read.common)
            random = {name: random_columns(of_level) for name, of_level in terms.items()}
            numbers = _numbers(levels.smooths.values(), typed)
            smooths = smooth_bases(levels.smooths, list(fixed), numbers, response_class(family).ordered)
            random = with_smooths(random, smooths, typed)
        except UserError:
            raise
        except Exception as fault:  # whatever formulae and pandas say of columns that do not fit together
            raise gate.misfit(formula, fault) from fault
        who = client_names(df[levels.client], f"column {levels.client!r}")
        refuse_totals(who, f"column {levels.client!r}")
        for name, column in [
            *fixed.items(),
            *(item for named_columns, _ in random.values() for item in named_columns.items()),
        ]:
            check_numbers(f"the effect {name!r}", np.asarray(column))
        for name in formula.own:
            check_formula_rank(name, random[name][0])
        independent = IndependentColumns.of_rows(list(fixed), fixed.to_numpy())
        fixed = fixed[list(independent.names_kept)]
        if fixed.empty:
            raise UserError(f"every fixed effect of {formula.text!r} is zero in every row")
        response = response_class(family).read(Cells.from_formulae(read.response, order_of(typed, formula)))
        if offset is not None:
            check_offset(offset)
        places = Groups.from_table(df, levels)
        groups = places.numbers(df)
        rows = {"offset": offset, "trials": response.trials, **more.numbers(typed), **groups}
        if more.correlated:
            more.correlated.check_levels(levels, formula.own)
            inside = {columns: groups[kind] for kind, columns in levels.inside.items()}
            rows |= more.correlated.numbers(df, who, inside)
        types = ColumnTypes.from_table(typed, formula.predictors, truths)
        return cls(
            family, more, levels, read, terms, fixed, independent, random, read.response.name, response,
            in_order(rows), who, places, types, spellings, _means(typed, types), smooths,
            _spread(typed, types),
        )  # fmt: skip

    def check(self, *, needs_residual: bool) -> None:
        """Refuses what no fit could learn from.

        Args:
            needs_residual: whether the residual has a spread that is learned.

        Raises:
            UserError: for such a table.
        """
        y, levels, response = self.response.y, self.response.levels, response_class(self.family)
        if levels:
            response.check_levels(self.name, np.bincount(y.astype(int) - 1, minlength=levels), self.response.labels)
        check_numbers(f"the response {self.name!r}", y)
        numbers = {level: self.rows[level] for level in KINDS[1:] if level in self.rows}
        random = {level: columns for level, (columns, _) in self.random.items()}
        check_groups(self.levels, self.who, numbers, random, needs_residual)
        if response.residual and not np.ptp(self._centre()[:, 0]):
            raise UserError(f"the response {self.name!r} does not vary")
        if needs_residual and response.residual and len(y) <= self.fixed.shape[1]:
            raise UserError(
                f"{len(y)} rows and {self.fixed.shape[1]} fixed effects leave nothing for the residual: take fewer"
            )

    def inputs(self) -> dict[str, np.ndarray]:
        """Columns of the design's inputs, by name."""
        columns = {f"{name} (fixed)": self.fixed[name].to_numpy() for name in self.fixed}
        for level in (*KINDS, *OWN_FORMULAS):
            columns_of_level, _ = self.random.get(level, ({}, ()))
            columns |= {f"{name} (random, {level})": column for name, column in columns_of_level.items()}
        return {**columns, **self.rows}

    def design(self) -> Design:
        """What the columns of the inputs are."""
        parts, response, correlated = self._centre(), response_class(self.family), self.more.correlated
        fixed = {name: self.fixed[name].to_numpy() for name in self.fixed}
        random, blocks = self.levels.of_clients(*self.random[CLIENT])
        units = {level: _units(*columns_of_level) for level, columns_of_level in self.random.items()}
        return Design.from_columns(
            list(fixed), random, self.family, tuple(self.rows), self.response.levels,
            centre=response.centre(float(parts[:, 0].sum()), float(parts[:, 1].sum())),
            scale=(float(np.std(parts[:, 0])) or 1.0) if response.residual else 1.0,
            blocks=blocks, random_units=units[CLIENT], fixed_units=_units(fixed, (len(fixed),)),
            labels=self.response.labels, fixed_correlation=self.independent.correlation,
            histogram=response.histogram(self.response.y, self.rows, np.asarray(self.who)).tolist(),
            correlation=None if correlated is None else correlated.sized(self.rows[SERIES]),
            **by_field({
                level: self.places.grouping(level, tuple(columns_of_level), blocks, units[level])
                for level, (columns_of_level, blocks) in self.random.items() if level != CLIENT
            }),
        )  # fmt: skip

    def reader(self, formula: str) -> Reader:
        """What makes such columns of other rows."""
        places = (self.places, self.independent, self.types, self.spellings, self.means, self.smooths, self.spread)
        return Reader(self.read, self.terms, tuple(self.rows), self.more, formula, *places)

    def _centre(self) -> np.ndarray:
        """See :meth:`hierfl.responses.base.Response.centre_parts`."""
        return response_class(self.family).centre_parts(self.response.y, self.rows)


def _numbers(smooths: Iterable[Smooth], df: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of smooth terms' columns, where they hold numbers."""
    names = [smooth.column for smooth in smooths if df[smooth.column].dtype.kind in "biuf"]
    columns = {name: df[name].to_numpy(dtype=float) for name in names}
    return {name: (float(x.mean()), float(x.std())) for name, x in columns.items()}


def _means(df: pd.DataFrame, types: ColumnTypes) -> dict[str, float]:
    """The means of the columns that are numbers."""
    return {name: float(df[name].mean()) for name in sorted(types.numbers)}


def _spread(df: pd.DataFrame, types: ColumnTypes) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the columns that are numbers."""
    return {name: (mean, float(df[name].std(ddof=0))) for name, mean in _means(df, types).items()}


def _units(columns: Mapping[str, np.ndarray], blocks: Sequence[int]) -> Units:
    """The units of columns (n,) each."""
    mean = [float(np.mean(column)) for column in columns.values()]
    return Units.from_moments(list(columns), mean, [root_mean_square(column) for column in columns.values()], blocks)


def root_mean_square(column: np.ndarray) -> float:
    """The root mean square of numbers whose squares may be large."""
    largest = float(np.abs(column).max(initial=0.0)) or 1.0
    return largest * float(np.sqrt(np.mean(np.square(np.asarray(column) / largest))))
