"""What makes the columns of a site's rows: those that the pooled table would have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ...responses.reading import Observed
from ..federation import Federation
from ..formula import gate
from ..formula.ambiguous import check_unambiguous
from ..formula.column_types import ColumnTypes
from ..formula.columns import check_numbers, effects_and_offset, random_columns, random_terms, with_smooths
from ..formula.correlation import SERIES, TIME
from ..formula.design import EXTRAS, Design
from ..formula.grouping import Grouping
from ..formula.groups import Groups, by_field
from ..formula.literals import in_listed_order
from ..formula.parsed import CLIENT, OUTER, OWN_FORMULAS
from ..formula.rank import IndependentColumns, intercept_of
from ..formula.reader import Reader
from ..formula.row_numbers import in_order
from ..formula.smooth import smooth_bases
from ..formula.units import INTERCEPT, Units
from .design import StudyFormula
from .design_checks import check_sums
from .design_sums import DesignSums
from .sums import Moments

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StudyReader:
    """Makes the columns of a site's rows, which are those of the pooled table.

    Attributes:
        formula: of the study.
        reader: of tables without a response.
        columns: names of all fixed columns.
        units: about where these lie and how far they spread, (p,) each, as all sites know it.
        levels: of the random columns of each level of grouping, the clients' first, names, and how many each term has.
    """

    formula: StudyFormula
    reader: Reader
    columns: tuple[str, ...]
    units: tuple[np.ndarray, np.ndarray]
    levels: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]]

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of the fixed columns that are made: all, or the independent ones."""
        independent = self.reader.independent
        return self.columns if independent is None else independent.names_kept

    def reduced(self, sums: DesignSums) -> StudyReader:
        """The same without fixed columns that all sites' rows show to be combinations of others."""
        if not len(sums.products):
            return self
        independent = IndependentColumns.of_sums(self.columns, sums.response.n, *self.units, sums.products)
        return replace(self, reader=replace(self.reader, independent=independent))

    @property
    def random(self) -> tuple[str, ...]:
        """Names of all random columns, level by level."""
        return tuple(name for names, _ in self.levels.values() for name in names)

    def arrays(self, df: pd.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray], Observed]:
        """The columns of effects (n, p + all random ones), what rows have beside them, and the response of a site.

        Raises:
            UserError: for rows that do not fit the dictionary, or a response that the family cannot have.
        """
        study = self.formula
        table = study.table(df)
        columns, offset = self.reader.effects(table)
        for name, column in zip((*self.fixed, *self.random), columns.T, strict=False):
            check_numbers(f"the effect {name!r}", column)
        response = self.reader.response(table, study.family)
        check_numbers("the response", response.y)
        numbers = self.places(table).numbers(table)
        if study.more.correlated:
            inside = {columns: numbers[kind] for kind, columns in study.levels.inside.items()}
            numbers |= study.more.correlated.numbers(table, np.zeros(len(table)), inside)
        rows = in_order({"offset": offset, "trials": response.trials, **study.more.numbers(table), **numbers})
        if offset is not None:
            check_numbers("the offset", offset)
        return columns, rows, response

    def places(self, table: pd.DataFrame, client: str = "") -> Groups:
        """The groups of a site's rows; their names stay there.

        Raises:
            UserError: for a site in two groups of sites.
        """
        levels, numbered = self.formula.levels, self.formula.places
        who = np.full(len(table), client)
        within = Groups.all_inside(who, table, levels)
        if not levels.outer or levels.crossed:
            return replace(numbered, within=within)
        homes = sorted(set(table[levels.outer].astype(str)))
        if len(homes) > 1:
            raise UserError(f"the site is in {len(homes)} of {levels.outer!r}: it is in one")
        return replace(numbered, within=within, homes={client: numbered.outer[homes[0]]})

    def second(self, df: pd.DataFrame) -> DesignSums:
        """A site's part of the second round."""
        columns, rows, arrays = self.arrays(df)
        p, y = len(self.fixed), arrays.y
        x, z = columns[:, :p], columns[:, p:]
        centre = self.formula.response.centre_parts(y, rows)
        unit = (x - self.units[0]) / self.units[1]
        response = Moments.from_columns(centre[:, :1], np.array([self.formula.centre]))
        inside = list(self.formula.levels.inside)
        groups = {kind: [rows[kind] == k for k in np.unique(rows[kind])] for kind in inside}
        groups[CLIENT] = [np.ones(len(y), dtype=bool)]
        # Of a group of sites a column may differ between them alone: that is looked at in all rows.
        varying, first = np.ptp(z, axis=0) > 0, 0
        for kind, (names, _) in self.levels.items():
            if kind in inside:
                for k in range(first, first + len(names)):
                    varying[k] = any(np.ptp(z[rows_of, k]) > 0 for rows_of in groups[kind])
            first += len(names)
        levels = (y[:, None] == np.arange(1, len(self.formula.ordinal_levels) + 1)).sum(0).astype(float)
        informative = int(
            all(max(group.sum() for group in groups[kind]) > len(self.levels[kind][0]) for kind in inside or [CLIENT])
        )
        several = np.array([float(len(groups[kind]) > 1) for kind in inside])
        homes = np.zeros(len(self.formula.places.outer))
        if OUTER in rows:  # of its one group of sites, or of all groups that cross them and that it has
            homes[np.unique(rows[OUTER]).astype(int) - 1] = 1.0
        return DesignSums(
            response, Moments.from_columns(z), x.T @ x, unit.T @ unit, varying.astype(float), 1, informative,
            centre.sum(0), levels,
            several, homes, self.formula.response.histogram(y, rows, np.zeros(len(y))),
        )  # fmt: skip

    def design(self, sums: DesignSums) -> Design:
        """The study's design, as the pooled table would give it.

        Raises:
            UserError: for what no fit could tell apart.
        """
        reduced = self.reduced(sums)
        study, fixed = self.formula, reduced.fixed
        if not fixed:
            raise UserError(f"every fixed effect of {study.formula!r} is zero in every row")
        base = reduced.columns_only()
        residual = study.response.residual
        check_sums(self.levels, study.levels, sums, needs_residual=residual and not study.more.known_se)
        if study.ordinal_levels:
            study.response.check_levels("of the study", sums.levels, study.ordinal_levels)
        sd = float(sums.response.sd[0])
        if residual and not sd:
            raise UserError("the response does not vary")
        centre = study.response.centre(float(sums.centre[0]), float(sums.centre[1]))
        kept = [self.columns.index(name) for name in fixed]
        n, ones, gram = sums.response.n, intercept_of(fixed), sums.gram[np.ix_(kept, kept)]
        means = np.zeros(len(fixed)) if ones is None else gram[ones] / n
        units, first = {}, 0
        for level, (names, blocks) in self.levels.items():
            part = slice(first, first + len(names))
            units[level] = Units.from_moments(names, sums.random.mean[part], sums.random.rms[part], blocks)
            first += len(names)
        return replace(
            base, histogram=tuple(sums.histogram.tolist()), centre=centre, scale=sd if residual else 1.0,
            fixed_units=Units.from_moments(fixed, means, np.sqrt(gram.diagonal() / n), (len(fixed),)),
            random_units=units[CLIENT], **by_field(self._groupings(units)),
        )  # fmt: skip

    def _groupings(self, units: Mapping[str, Units]) -> dict[str, Grouping]:
        """The groupings of levels inside or above the sites, and of formulas. Only a site knows how many are inside."""
        levels, groups, groupings = self.formula.levels, tuple(self.formula.places.outer), {}
        for level, (names, blocks) in self.levels.items():
            if level in levels.smooths:
                groupings[level] = Grouping.of_smooth(levels.smooths[level])
            elif level in levels.inside:
                groupings[level] = Grouping(names, blocks, units[level], levels.factor(level), most=1)
            elif level == OUTER:
                groupings[level] = Grouping(names, blocks, units[level], levels.outer, groups, crossed=levels.crossed)
            elif level in OWN_FORMULAS:
                groupings[level] = Grouping(names, blocks, units[level])
        return groupings

    def columns_only(self) -> Design:
        """The study's design before anything is known of the response: its columns, which say all shapes."""
        (random, blocks), formula = self.formula.levels.of_clients(*self.levels[CLIENT]), self.formula
        units = {level: Units((0.0,) * len(names), (1.0,) * len(names)) for level, (names, _) in self.levels.items()}
        return Design.from_columns(
            self.fixed, random, formula.family, self.reader.extras, len(formula.ordinal_levels), blocks=blocks,
            labels=formula.ordinal_levels, **by_field(self._groupings(units)), correlation=formula.more.correlated,
            fixed_correlation=None if self.reader.independent is None else self.reader.independent.correlation,
        )  # fmt: skip

    def federation(
        self, df: pd.DataFrame, client: str, *, test: float = 0.0, validation: float = 0.0, seed: int = 0
    ) -> Federation:
        """One site's rows as a federation of one client; what is held out is what would be of the pooled table.

        Args:
            df: the site's table.
            client: its name in the study.
            test, validation, seed: as for :func:`~hierfl.data.formula.federate.from_formula`.
        """
        import pandas as pd

        columns, rows, response = self.arrays(df)
        names = [f"{name} (fixed)" for name in self.fixed]
        names += [f"{name} (random, {level})" for level, (random, _) in self.levels.items() for name in random]
        wide = pd.DataFrame(columns, columns=names).assign(**rows, response=response.y, client=client)
        names += list(rows)
        made = Federation.from_frame(
            wide, client="client", y="response", x=names, test=test, validation=validation, seed=seed,
            task="regression", standardise=False,
        )  # fmt: skip
        places = self.places(self.formula.table(df), client)
        return replace(made, about={**made.about, "reader": replace(self.reader, places=places)})


def study_reader(formula: StudyFormula, moments: Moments) -> StudyReader:
    """What makes any site's columns, from all sites' moments.

    Raises:
        UserError: for a formula without effects, or hardly any rows.
    """
    if moments.n < 2:
        raise UserError("the sites have fewer than two rows together")
    table = skeleton(formula, moments)
    read = gate.evaluate(formula.terms, table)
    if read.common is None or read.group is None:
        raise UserError(f"the formula {formula.formula!r} has no fixed effects, or no random ones")
    groups = random_terms(formula.terms, formula.levels, read, table)
    check_unambiguous(read, groups, ())
    random = {name: random_columns(of_level) for name, of_level in groups.items()}
    fixed, offset = effects_and_offset(read.common)
    numbers = dict(zip(formula.numbers, zip(moments.mean, moments.sd, strict=True), strict=True))
    smooths = smooth_bases(formula.levels.smooths, list(fixed), numbers, formula.response.ordered)
    random = with_smooths(random, smooths, table)
    rows = {"offset": offset, "trials": read.response.kind == "proportion" or None, **formula.more.names}
    rows |= {
        **{kind: formula.levels.factor(kind) for kind in formula.levels.inside},
        OUTER: formula.levels.outer or None,
    }
    if formula.more.correlated:
        formula.more.correlated.check_levels(formula.levels, formula.terms.own)
        rows |= {SERIES: True, TIME: formula.more.correlated.time or None}
    extras = tuple(name for name in EXTRAS if rows.get(name) is not None)
    reader = Reader(
        read, groups, extras, formula.more, formula.formula, formula.places, smooths=smooths,
        types=ColumnTypes.from_table(table, formula.terms.predictors), spellings=formula.dictionary.spellings,
    )  # fmt: skip
    levels = {k: (tuple(v), blocks) for k, (v, blocks) in random.items()}
    return StudyReader(formula, reader, tuple(fixed), _approximate_units(fixed), levels)


def _approximate_units(fixed: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """About where columns lie and how far they spread, by a table that every site has: sums lose no digits there."""
    centre, scale = np.zeros(fixed.shape[1]), np.ones(fixed.shape[1])
    movable = intercept_of(list(fixed)) is not None
    for k, name in enumerate(fixed):
        values = fixed[name].to_numpy()
        values = values[np.isfinite(values)]  # a mean less a spread may have no logarithm
        if name in INTERCEPT or not len(values):
            continue
        centre[k] = values.mean() if movable else 0.0
        scale[k] = np.sqrt(np.square(values - centre[k]).mean()) or np.abs(values).max() or 1.0
    return centre, scale


def skeleton(formula: StudyFormula, moments: Moments) -> pd.DataFrame:
    """A table with every level, and numbers of all sites' means and spreads: transforms learn from it what they would
    from all rows.

    Args:
        formula: of the study.
        moments: of its numbers, over all sites.
    """
    import pandas as pd

    spread = dict(zip(formula.numbers, zip(moments.mean, moments.sd, strict=True), strict=True))
    rows = 2 * max([2, *(len(column.levels) for column in formula.columns.values())])
    table: dict[str, Any] = {}
    for name in sorted(formula.terms.columns | formula.more.columns):
        column = formula.columns.get(name)
        if column is None or column.kind == "name":  # the sites, and groups inside them
            table[name] = ["one", "two"] * (rows // 2)
        elif column.kind == "category":
            table[name] = pd.Categorical((list(column.levels) * rows)[:rows], list(column.levels), ordered=True)
        elif name in spread:
            mean, sd = spread[name]
            table[name] = np.tile([mean - sd, mean + sd], rows // 2)
        else:
            table[name] = np.tile([0, 1], rows // 2)
    return in_listed_order(pd.DataFrame(table), formula.terms)
