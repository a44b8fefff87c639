"""A formula read without the rows: by a dictionary's levels, and by means and spreads that are sums over sites.

Each site makes the columns that the pooled table would have; what else is read off all rows (about where the response
lies, how large the random columns are, whether effects can be told apart) is made from a second round of sums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ..federation import Federation
from ..formula import gate
from ..formula.columns import check_numbers, random_columns, response_numbers
from ..formula.design import INTERCEPT, Design, Family, Units
from ..formula.federate import Reader, response_centre, standard_errors
from .dictionary import Column, Dictionary
from .sums import Moments, NamedSums

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
        error: a column of known standard errors of a gaussian response; empty for none.
    """

    formula: str
    dictionary: Dictionary
    family: Family = "gaussian"
    error: str = ""

    def __post_init__(self) -> None:
        terms = self.terms
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
        return {*(self.terms.response or ()), *self.terms.predictors} | ({self.error} if self.error else set())

    @property
    def numbers(self) -> list[str]:
        """Predictors of which means and spreads are needed."""
        return sorted(n for n in self.terms.predictors if self.columns[n].kind in ("number", "whole"))

    @property
    def centre(self) -> float:
        """About where the response lies."""
        return self.columns[next(iter(self.terms.response or ()))].centre

    # -- the first round: means and spreads ---------------------------------------------------------------------

    def first(self, df: pd.DataFrame) -> Moments:
        """A site's sums of its predictors; checks all of its columns against the dictionary."""
        table = self.dictionary.read(df, sorted(self.used))
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
        random = tuple(random_columns(read.group))
        place = next(iter(read.group.terms.values())).factor.name
        inner = Reader(read, place, random, self.error or None, self.formula)
        return StudyReader(self, inner, tuple(read.common.as_dataframe()), random)

    def _skeleton(self, spread: Mapping[str, tuple[float, float]]) -> pd.DataFrame:
        """A table with every level, and numbers of these means and spreads: transforms learn from it what they would
        from all rows.
        """
        import pandas as pd

        rows = 2 * max([2, *(len(column.levels) for column in self.columns.values())])
        table: dict[str, Any] = {}
        for name in sorted(self.terms.columns | ({self.error} if self.error else set())):
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
class DesignSums:
    """A second round of sums. They add up.

    Attributes:
        response: moments of the response, one column.
        random: moments of the random columns.
        gram: X'X of the fixed columns, (p, p).
        varying: for each random column, the sites whose rows differ in it, (q,).
        sites: how many sites.
        informative: sites with more rows than random effects.
    """

    response: Moments
    random: Moments
    gram: np.ndarray
    varying: np.ndarray
    sites: int
    informative: int

    @classmethod
    def named(cls, sums: NamedSums, centre: float) -> DesignSums:
        """Undoes :meth:`sums`; ``centre`` is that of the response."""
        response = Moments.named(sums, np.array([centre]), "response.")
        random = Moments.named(sums, np.zeros_like(sums["varying"]), "random.")
        return cls(
            response, random, sums["gram"], sums["varying"], int(sums["sites"]), int(sums["informative"])
        )  # fmt: skip

    def sums(self) -> dict[str, np.ndarray]:
        """What is sent of them."""
        return {
            **self.response.sums("response."), **self.random.sums("random."), "gram": self.gram,
            "varying": self.varying, "sites": np.array(float(self.sites)),
            "informative": np.array(float(self.informative)),
        }  # fmt: skip

    def __add__(self, other: DesignSums) -> DesignSums:
        """Of the sites of both."""
        return DesignSums(
            self.response + other.response, self.random + other.random, self.gram + other.gram,
            self.varying + other.varying, self.sites + other.sites, self.informative + other.informative,
        )  # fmt: skip


@dataclass(frozen=True)
class StudyReader:
    """Makes the columns of a site's rows, which are those of the pooled table.

    Attributes:
        formula: of the study.
        reader: of tables without a response.
        fixed, random: names of the columns.
    """

    formula: StudyFormula
    reader: Reader
    fixed: tuple[str, ...]
    random: tuple[str, ...]

    def arrays(self, df: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """The columns (n, p + q [+ 1]) and the response (n,) of a site's rows.

        Raises:
            UserError: for rows that do not fit the dictionary, or a response that the family cannot have.
        """
        study = self.formula
        table = study.dictionary.read(df, sorted(study.used))
        columns = self.reader(table)
        for name, column in zip((*self.fixed, *self.random), columns.T, strict=False):
            check_numbers(f"the effect {name!r}", column)
        if study.error:
            standard_errors(table, study.error)
        left = gate.parse(f"{study.formula.partition('~')[0]} ~ 1")
        y = response_numbers(gate.evaluate(left, table).response, study.family)
        check_numbers("the response", y)
        return columns, y

    def second(self, df: pd.DataFrame) -> DesignSums:
        """A site's part of the second round."""
        columns, y = self.arrays(df)
        p, q = len(self.fixed), len(self.random)
        x, z = columns[:, :p], columns[:, p : p + q]
        response = Moments.of(y[:, None], np.array([self.formula.centre]))
        varying = (np.ptp(z, axis=0) > 0).astype(float)
        return DesignSums(response, Moments.of(z), x.T @ x, varying, 1, int(len(y) > q))

    def design(self, sums: DesignSums) -> Design:
        """The study's design, as the pooled table would give it.

        Raises:
            UserError: for what no fit could tell apart.
        """
        study, base = self.formula, self.columns_only()
        gaussian, random = study.family == "gaussian", self.random
        if sums.sites < 2:
            raise UserError("there is one site: random effects need several")
        if gaussian and not study.error and not sums.informative:
            raise UserError(f"no site has more rows than the {len(random)} random effects: give known standard errors")
        for name, varies in zip(random, sums.varying, strict=True):
            if name != INTERCEPT[0] and INTERCEPT[0] in random and not varies:
                raise UserError(f"no site can inform the random slope of {name!r}: it is the same in all of its rows")
        _check_gram(self.fixed, sums.gram)
        mean, sd = float(sums.response.mean[0]), float(sums.response.sd[0])
        if gaussian and not sd:
            raise UserError("the response does not vary")
        centre = response_centre(mean, int(sums.response.n), study.family)
        n, first = sums.response.n, self.fixed.index(INTERCEPT[0]) if INTERCEPT[0] in self.fixed else None
        means = np.zeros(len(self.fixed)) if first is None else sums.gram[first] / n
        return replace(
            base, centre=centre, scale=sd if gaussian else 1.0,
            fixed_units=Units.of(self.fixed, means, np.sqrt(sums.gram.diagonal() / n), (len(self.fixed),)),
            random_units=Units.of(self.random, sums.random.mean, sums.random.rms, base.blocks),
        )  # fmt: skip

    def columns_only(self) -> Design:
        """The study's design before anything is known of the response: its columns, which say all shapes."""
        groups = self.formula.terms.groups
        if len(groups) > 1 and len(self.random) > len(groups):
            raise UserError("write the random effects in one term, such as (1 + x | site), or each in one of its own")
        blocks = (1,) * len(self.random) if len(groups) > 1 else (len(self.random),)
        return Design.of(self.fixed, self.random, self.formula.family, bool(self.formula.error), blocks=blocks)

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

        columns, y = self.arrays(df)
        names = [*(f"{name} (fixed)" for name in self.fixed), *(f"{name} (random)" for name in self.random)]
        names += ["standard error"] if self.formula.error else []
        wide = pd.DataFrame(columns, columns=names).assign(response=y, client=client)
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
