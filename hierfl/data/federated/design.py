"""A formula read without the rows: by a dictionary's levels, and by means and spreads that are sums over sites.

Each site makes the columns that the pooled table would have; what else is read off all rows (about where the response
lies, how large the random columns are, whether effects can be distinguished) is made from a second round of sums.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...errors import UserError
from ...responses.registry import response_class
from ..formula import gate
from ..formula.crossed import check_size
from ..formula.groups import Groups
from ..formula.literals import check_levels_named
from ..formula.parsed import Levels
from ..formula.row_numbers import RowColumns
from .dictionary import Column, Dictionary
from .sums import Moments

if TYPE_CHECKING:
    import pandas as pd

    from ...responses.base import Response
    from ..formula.correlation import Correlation
    from ..formula.parsed import Formula

#: transforms that remember a column's mean, or also its spread, which sums can say
MEAN_AND_SD = ("center", "scale", "standardize")
#: transforms that remember more of the rows than sums can say
OF_ALL_ROWS = ("bs", "cr", "cc", "tp", "poly")
#: of a study's formula: the table that was looked at last, and its columns
KEPT = "_table"


@dataclass(frozen=True)
class StudyFormula:
    """A mixed-effects model of tables that stay at their sites.

    Attributes:
        formula: such as ``y ~ 1 + x + (1 + x | site)``; what is right of the bar names the sites, and is no column.
            Of ``(1 | site/patient)`` the patients are a column of every site's table, and of ``(1 | region/site)`` the
            regions.
        dictionary: of every site's table.
        family: of the response.
        more: columns that the formula does not name.
    """

    formula: str
    dictionary: Dictionary
    family: str = "gaussian"
    more: RowColumns = field(default_factory=RowColumns)

    def __post_init__(self) -> None:
        terms = self.terms
        self.more.check(self.family)
        object.__setattr__(self, "more", self.more.beside(terms))
        if terms.response is None:
            raise UserError(f"a study's formula has a response, and {terms.text!r} has none")
        self._check_levels()
        if self.more.correlated:
            self._check_correlation(self.more.correlated)
        for call in OF_ALL_ROWS:
            if re.search(rf"(?<![\w.`]){call}\s*\(", terms.calls):
                raise UserError(
                    f"{call}() is made of all rows, which no sum says: write the terms out, as in x + I(x**2)"
                )
        for call in MEAN_AND_SD:
            for argument in re.findall(rf"(?<![\w.`]){call}\s*\(([^()]*)\)?", terms.calls):
                name = argument.strip().strip("`")
                if self.columns.get(name, Column("flag")).kind not in ("number", "whole"):
                    raise UserError(f"{call}() takes a plain column of numbers here: sums say its mean and spread")
        if missing := sorted(self.used - set(self.dictionary.columns)):
            raise UserError(f"the formula's column {missing[0]!r} is not in the dictionary")
        check_levels_named(terms, self._levels())
        if self.response.ordered:
            (name, *others) = sorted(terms.response)
            if others or self.columns[name].kind != "category":
                raise UserError("an ordinal response is a category of the dictionary, with its levels in their order")
            self.response.check_levels(name, np.ones(len(self.columns[name].levels)))

    def _check_correlation(self, correlation: Correlation) -> None:
        """Refuses a correlation of residuals that sites cannot know alike."""
        if correlation.group == self.levels.client:
            raise UserError(f"a site is one client, and its rows one series: {correlation.kind}({correlation.time})")
        correlation.check_levels(self.levels)
        if correlation.kind == "cs" and not correlation.most:
            raise UserError(f"a study says how many rows a group has at most: cs({correlation.group}, most=6)")

    def _levels(self) -> dict[str, pd.Series]:
        """The levels of each column that is used, or that it is a number."""
        import pandas as pd

        return {name: pd.Series(list(self.columns[name].levels) or [0.0]) for name in self.used}

    def _check_levels(self) -> None:
        """Refuses columns of groups that are not what they have to be."""
        levels = self.levels
        for name in levels.inner_columns:
            if self.columns[name].kind != "name":
                raise UserError(f"the groups inside a site, {name!r}, are a column of names in the dictionary")
        if levels.outer and self.columns[levels.outer].kind != "category":
            what = "a factor that crosses the sites" if levels.crossed else "groups of sites"
            raise UserError(f"{levels.outer!r}, {what}, is to be a category of the dictionary")
        if levels.crossed:
            check_size(levels.outer, len(self.columns[levels.outer].levels), 1)

    @property
    def levels(self) -> Levels:
        """The sites are the grouping factor that is no column of the dictionary."""
        sites = [name for term in self.terms.random for name in term.path if name not in self.columns]
        return self.terms.levels(sites[0] if sites else None)

    @property
    def places(self) -> Groups:
        """Groups of sites, in the order of the dictionary."""
        outer = self.columns[self.levels.outer].levels if self.levels.outer else ()
        return Groups(self.levels, outer={str(name): k + 1 for k, name in enumerate(outer)})

    @property
    def terms(self) -> Formula:
        """The formula, read."""
        return gate.parse(self.formula)

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns of the dictionary."""
        return self.dictionary.columns

    @property
    def used(self) -> set[str]:
        """The columns that a site's table must have."""
        own = {*self.levels.inner_columns, self.levels.outer} - {""}
        return {*(self.terms.response or ()), *self.terms.predictors} | self.more.columns | own

    @property
    def numbers(self) -> list[str]:
        """Predictors of which means and spreads are needed."""
        return sorted(n for n in self.terms.predictors if self.columns[n].kind in ("number", "whole"))

    @property
    def response(self) -> type[Response]:
        """The response of the family."""
        return response_class(self.family)

    @property
    def centre(self) -> float:
        """About where the response lies, as its own sums have it."""
        return self.response.near(self.columns[next(iter(self.terms.response or ()))].centre)

    @property
    def ordinal_levels(self) -> tuple[str, ...] | tuple[int, ...]:
        """The levels of an ordinal response."""
        return self.columns[next(iter(self.terms.response or ()))].levels if self.response.ordered else ()

    def table(self, df: pd.DataFrame) -> pd.DataFrame:
        """A site's columns, checked, an ordinal response's levels in their order; the last one's are kept."""
        import pandas as pd

        before, kept = vars(self).get(KEPT, (lambda: None, None))
        if kept is not None and before() is df:
            return kept.copy(deep=False)
        table = self.dictionary.read(df, sorted(self.used))
        if self.ordinal_levels:
            (name,) = sorted(self.terms.response or ())
            table[name] = pd.Categorical(table[name], categories=list(self.ordinal_levels), ordered=True)
        vars(self)[KEPT] = weakref.ref(df), table
        return table.copy(deep=False)

    # -- the first round: means and spreads ---------------------------------------------------------------------

    def first(self, df: pd.DataFrame) -> Moments:
        """A site's sums of its predictors; checks all of its columns against the dictionary."""
        table = self.table(df)
        centre = np.array([self.columns[name].centre for name in self.numbers])
        return Moments.from_columns(table[self.numbers].to_numpy(dtype=float).reshape(len(df), -1), centre)
