"""A formula read without the rows: by a dictionary's levels, and by means and spreads that are sums over sites.

Each site makes the columns that the pooled table would have; what else is read off all rows (about where the response
lies, how large the random columns are, whether effects can be told apart) is made from a second round of sums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ..federation import Federation
from ..formula import gate
from ..formula.columns import check_numbers, effects_and_offset, random_columns, random_terms
from ..formula.design import EXTRAS, INTERCEPT, Design, Units
from ..formula.federate import Reader
from ..formula.responses import Family, Response, centre_parts, check_levels, response_centre
from ..formula.row_numbers import RowColumns, in_order
from .design_sums import DesignSums
from .dictionary import Column, Dictionary
from .sums import Moments

if TYPE_CHECKING:
    import pandas as pd

    from ..formula.parsed import Formula

#: transforms that remember a column's mean (and spread), which sums can say
MEAN_AND_SD = ("center", "scale", "standardize")
#: transforms that remember more of the rows than sums can say
OF_ALL_ROWS = ("bs", "cr", "cc", "tp", "poly")


@dataclass(frozen=True)
class StudyFormula:
    """A mixed-effects model of tables that stay at their sites.

    Attributes:
        formula: such as ``y ~ 1 + x + (1 + x | site)``; what is right of the bar names the sites, and is no column.
        dictionary: of every site's table.
        family: of the response.
        more: columns that the formula does not name.
    """

    formula: str
    dictionary: Dictionary
    family: Family = "gaussian"
    more: RowColumns = field(default_factory=RowColumns)

    def __post_init__(self) -> None:
        terms = self.terms
        self.more.check(self.family)
        if terms.response is None or not terms.groups or len(set(terms.groups)) > 1:
            raise UserError(f"a study's formula has a response and one grouping factor, not {terms.text!r}")
        for call in OF_ALL_ROWS:
            if re.search(rf"(?<![\w.`]){call}\s*\(", terms.safe):
                raise UserError(f"{call}() places its knots by all rows, which no sum says: write the terms out")
        for call in MEAN_AND_SD:
            for argument in re.findall(rf"(?<![\w.`]){call}\s*\(([^()]*)\)?", terms.safe):
                name = argument.strip().strip("`")
                if self.columns.get(name, Column("flag")).kind not in ("number", "whole"):
                    raise UserError(f"{call}() takes a plain column of numbers here: sums say its mean and spread")
        if missing := sorted(self.used - set(self.dictionary.columns)):
            raise UserError(f"the formula's column {missing[0]!r} is not in the dictionary")
        if self.family == "ordinal":
            (name, *others) = sorted(terms.response)
            if others or self.columns[name].kind != "category":
                raise UserError("an ordinal response is a category of the dictionary, with its levels in their order")
            check_levels(name, np.ones(len(self.columns[name].levels)))

    @property
    def terms(self) -> Formula:
        """The formula, read."""
        return gate.parse(self.formula)

    @property
    def columns(self) -> Mapping[str, Column]:
        """Of the dictionary."""
        return self.dictionary.columns

    @property
    def used(self) -> set[str]:
        """The columns that a site's table must have."""
        return {*(self.terms.response or ()), *self.terms.predictors} | self.more.columns

    @property
    def numbers(self) -> list[str]:
        """Predictors of which means and spreads are needed."""
        return sorted(n for n in self.terms.predictors if self.columns[n].kind in ("number", "whole"))

    @property
    def centre(self) -> float:
        """About where the response lies."""
        return self.columns[next(iter(self.terms.response or ()))].centre if self.family == "gaussian" else 0.0

    @property
    def levels(self) -> tuple[str, ...] | tuple[int, ...]:
        """Of an ordinal response."""
        return self.columns[next(iter(self.terms.response or ()))].levels if self.family == "ordinal" else ()

    def table(self, df: pd.DataFrame) -> pd.DataFrame:
        """A site's columns, checked, with an ordinal response's levels in their order."""
        import pandas as pd

        table = self.dictionary.read(df, sorted(self.used))
        if self.levels:
            (name,) = sorted(self.terms.response or ())
            table[name] = pd.Categorical(table[name], categories=list(self.levels), ordered=True)
        return table

    # -- the first round: means and spreads ---------------------------------------------------------------------

    def first(self, df: pd.DataFrame) -> Moments:
        """A site's sums of its predictors; checks all of its columns against the dictionary."""
        table = self.table(df)
        centre = np.array([self.columns[name].centre for name in self.numbers])
        return Moments.of(table[self.numbers].to_numpy(dtype=float).reshape(len(df), -1), centre)

    def reader(self, moments: Moments) -> StudyReader:
        """What makes any site's columns, from all sites' moments."""
        if moments.n < 2:
            raise UserError("the sites have fewer than two rows together")
        skeleton = self._skeleton(dict(zip(self.numbers, zip(moments.mean, moments.sd, strict=True), strict=True)))
        read = gate.evaluate(self.terms, skeleton)
        if read.common is None or read.group is None:
            raise UserError(f"the formula {self.formula!r} has no fixed effects, or no random ones")
        groups = random_terms(self.terms, read, skeleton)
        random, blocks = random_columns(groups)
        fixed, offset = effects_and_offset(read.common)
        rows = {"offset": offset, "trials": read.response.kind == "proportion" or None, **self.more.names}
        extras = tuple(name for name in EXTRAS if rows.get(name) is not None)
        return StudyReader(
            self, Reader(read, groups, extras, self.more, self.formula), tuple(fixed), tuple(random), blocks
        )

    def _skeleton(self, spread: Mapping[str, tuple[float, float]]) -> pd.DataFrame:
        """A table with every level, and numbers of these means and spreads: transforms learn from it what they would
        from all rows.
        """
        import pandas as pd

        rows = 2 * max([2, *(len(column.levels) for column in self.columns.values())])
        table: dict[str, Any] = {}
        for name in sorted(self.terms.columns | self.more.columns):
            column = self.columns.get(name)
            if column is None:  # (the sites)
                table[name] = ["one", "two"] * (rows // 2)
            elif column.kind == "category":
                table[name] = (list(column.levels) * rows)[:rows]
            elif name in spread:
                mean, sd = spread[name]
                table[name] = np.tile([mean - sd, mean + sd], rows // 2)
            else:
                table[name] = np.tile([0, 1], rows // 2)
        return pd.DataFrame(table)


@dataclass(frozen=True)
class StudyReader:
    """Makes the columns of a site's rows, which are those of the pooled table.

    Attributes:
        formula: of the study.
        reader: of tables without a response.
        fixed, random: names of the columns.
        blocks: how many random columns each term has.
    """

    formula: StudyFormula
    reader: Reader
    fixed: tuple[str, ...]
    random: tuple[str, ...]
    blocks: tuple[int, ...]

    def arrays(self, df: pd.DataFrame) -> tuple[np.ndarray, dict[str, np.ndarray], Response]:
        """The columns of effects (n, p + q), what rows have beside them, and the response of a site's rows.

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
        rows = in_order({"offset": offset, "trials": response.trials, **study.more.numbers(table)})
        if offset is not None:
            check_numbers("the offset", offset)
        return columns, rows, response

    def second(self, df: pd.DataFrame) -> DesignSums:
        """A site's part of the second round."""
        columns, rows, found = self.arrays(df)
        p, q, y = len(self.fixed), len(self.random), found.y
        x, z = columns[:, :p], columns[:, p:]
        centre = centre_parts(y, rows, self.formula.family)
        response = Moments.of(centre[:, :1], np.array([self.formula.centre]))
        varying = (np.ptp(z, axis=0) > 0).astype(float)
        levels = (y[:, None] == np.arange(1, len(self.formula.levels) + 1)).sum(0).astype(float)
        informative = int(len(y) > q)
        return DesignSums(response, Moments.of(z), x.T @ x, varying, 1, informative, centre.sum(0), levels)

    def design(self, sums: DesignSums) -> Design:
        """The study's design, as the pooled table would give it.

        Raises:
            UserError: for what no fit could tell apart.
        """
        study, base = self.formula, self.columns_only()
        gaussian, random = study.family == "gaussian", self.random
        if sums.sites < 2:
            raise UserError("there is one site: random effects need several")
        if gaussian and not study.more.known_se and not sums.informative:
            raise UserError(f"no site has more rows than the {len(random)} random effects: give known standard errors")
        for name, varies in zip(random, sums.varying, strict=True):
            if name != INTERCEPT[0] and INTERCEPT[0] in random and not varies:
                raise UserError(f"no site can inform the random slope of {name!r}: it is the same in all of its rows")
        _check_gram(self.fixed, sums.gram)
        if study.levels:
            check_levels("of the study", sums.levels)
        sd = float(sums.response.sd[0])
        if gaussian and not sd:
            raise UserError("the response does not vary")
        centre = response_centre(float(sums.centre[0]), float(sums.centre[1]), study.family)
        n, first = sums.response.n, self.fixed.index(INTERCEPT[0]) if INTERCEPT[0] in self.fixed else None
        means = np.zeros(len(self.fixed)) if first is None else sums.gram[first] / n
        return replace(
            base, centre=centre, scale=sd if gaussian else 1.0,
            fixed_units=Units.of(self.fixed, means, np.sqrt(sums.gram.diagonal() / n), (len(self.fixed),)),
            random_units=Units.of(self.random, sums.random.mean, sums.random.rms, base.blocks),
        )  # fmt: skip

    def columns_only(self) -> Design:
        """The study's design before anything is known of the response: its columns, which say all shapes."""
        return Design.of(
            self.fixed, self.random, self.formula.family, self.reader.extras, len(self.formula.levels),
            blocks=self.blocks,
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
        names = [*(f"{name} (fixed)" for name in self.fixed), *(f"{name} (random)" for name in self.random)]
        wide = pd.DataFrame(columns, columns=names).assign(**rows, response=response.y, client=client)
        names += list(rows)
        made = Federation.from_frame(
            wide, client="client", y="response", x=names, test=test, validation=validation, seed=seed, task="regression"
        )
        return replace(made, about={**made.about, "reader": self.reader})


def _check_gram(fixed: tuple[str, ...], gram: np.ndarray) -> None:
    """Refuses fixed effects of which one is a combination of others, by X'X."""
    length = np.sqrt(gram.diagonal())
    for name, value in zip(fixed, length, strict=True):
        if not value:
            raise UserError(f"the fixed effect {name!r} is zero in every row")
    unit = gram / length / length[:, None]
    for k, name in enumerate(fixed):
        # what is left of a column beside those before it, relative to its length
        rest = unit[k, k] - (unit[k, :k] @ np.linalg.lstsq(unit[:k, :k], unit[:k, k], rcond=None)[0] if k else 0.0)
        if rest < 1e-12:
            raise UserError(f"the fixed effect {name!r} is a combination of those before it: leave one out")
