"""A data dictionary: what the columns of every site's table are, agreed on before anything is computed.

What is otherwise read off the pooled rows (the levels of a category, the numbers of labels, a column's mean) cannot be
read off one site's: a site that has never seen a level would build a design without its column.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from ...errors import UserError, unknown
from ...schema import AnyOf, Number, Schema, check
from ..column_names import lacks, one_column
from ..reading.options import Reading
from ..reading.read import ENDINGS, read_file
from ..reading.remedies import SITE
from ..spellings import Spellings, joined
from .levels_spelled import as_agreed, check_levels_spelled

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")
Kind = Literal["number", "whole", "flag", "category", "name"]
#: of one column in a file
COLUMN: Schema = {
    "kind": str, "levels?": [AnyOf(str, int)], "least?": Number(), "most?": Number(), "unit?": str, "about?": str,
}  # fmt: skip
#: what a category may have at most
MOST_LEVELS = 10_000


@dataclass(frozen=True)
class Column:
    """A column of every site's table.

    Attributes:
        kind: "number", "whole" (numbers), "flag" (true or false, or 0 and 1), "category", or "name": of groups inside a
            site, such as its patients; it stays there.
        levels: of a category, all that any site may have, in the order of their columns; text, or whole numbers.
        least, most: the range of numbers; None for none.
        unit, about: for people.
    """

    kind: Kind
    levels: tuple[str, ...] | tuple[int, ...] = ()
    least: float | None = None
    most: float | None = None
    unit: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise unknown("kind of a column", self.kind, get_args(Kind))
        if (self.kind == "category") != bool(self.levels):
            raise UserError(f"a category has levels, and nothing else has; not {self.kind} with {len(self.levels)}")
        if len(set(self.levels)) < len(self.levels) or len({type(level) for level in self.levels}) > 1:
            raise UserError("the levels of a category differ, and are all text or all whole numbers")
        if len(self.levels) > MOST_LEVELS:
            raise UserError(f"a category has at most {MOST_LEVELS} levels")
        if self.kind in ("flag", "category", "name") and not self.least is self.most is None:
            raise UserError(f"only numbers have a range, not a {self.kind}")
        if not all(edge is None or abs(edge) < 1e100 for edge in (self.least, self.most)):  # sums are around the middle
            raise UserError("a range has ends below 1e100: leave least or most out where there is none")
        if self.least is not None and self.most is not None and not self.least < self.most:
            raise UserError(f"a range goes from less to more, not from {self.least} to {self.most}")

    @property
    def ranged(self) -> bool:
        """Whether numbers have a range."""
        return self.least is not None or self.most is not None

    @property
    def centre(self) -> float:
        """About where its numbers lie: sums of squares are taken around it."""
        edges = [edge for edge in (self.least, self.most) if edge is not None]
        return sum(edges) / len(edges) if edges else 0.0

    def misfit(self, values: pd.Series) -> str:
        """Why a site's values do not fit, in words that hold none of them; empty where they do."""
        missing = int(values.isna().sum())
        if missing:
            return f"lacks {missing} of its {len(values)} values"
        number = values.dtype.kind in ("iuf" if self.kind == "number" else "iufb")
        if self.kind == "category":
            strange = int((~values.isin(self.levels)).sum())
            many = f"{strange} value{' that is' if strange == 1 else 's that are'}"
            return f"has {many} none of its {len(self.levels)} levels" if strange else ""
        if self.kind == "name":
            return ""
        if not number:
            return f"holds {'truth values' if values.dtype.kind == 'b' else 'words'}, and is declared a {self.kind}"
        numbers = values.to_numpy(dtype=float)
        if not np.isfinite(numbers).all():
            return "holds numbers that are not finite"
        if self.kind == "flag" and not np.isin(numbers, (0.0, 1.0)).all():
            return "holds more than 0 and 1, and is declared a flag"
        if self.kind == "whole" and not (numbers == np.floor(numbers)).all():
            return "holds decimals, and is declared whole"
        least, most = (edge if edge is not None else sign * np.inf for edge, sign in ((self.least, -1), (self.most, 1)))
        outside = int(((numbers < least) | (numbers > most)).sum())
        many = f"{outside} value{'s' * (outside > 1)}"
        return f"has {many} outside of its range, {least:g} to {most:g}" if outside else ""

    def typed(self, values: pd.Series) -> pd.Series:
        """A site's values, of the type that every site's have."""
        if self.kind == "name":
            return values.astype(str)
        if self.kind == "category":
            return values if isinstance(self.levels[0], str) else values.astype("int64")
        return values.astype("float64" if self.kind == "number" else "int64")


def _levels(values: pd.Series) -> tuple[str, ...]:
    """Those that there are; of a pandas category all that it has, in its own order, the reference first."""
    if hasattr(values, "cat"):
        return tuple(str(level) for level in values.cat.categories)
    return tuple(sorted({str(value) for value in values}))


@dataclass(frozen=True)
class Dictionary:
    """What every site's table holds.

    Attributes:
        columns: {name: what it is}; other columns of a site's table are not looked at.
        spellings: what becomes of a site's names that differ from a level, or from each other, in blanks, capitals or
            Unicode form alone.
    """

    columns: Mapping[str, Column] = field(default_factory=dict)
    spellings: Spellings = field(default_factory=Spellings)

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if self.spellings[name] != "keep":
                check_levels_spelled(name, column.levels)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], path: Path, spellings: Spellings | None = None) -> Dictionary:
        """Reads a dictionary from a table of a toml file, {name: {kind = ..., levels = ...}}.

        Args:
            table: of the file.
            path: of the file, for messages.
            spellings: what becomes of names that are spelled alike; by default they are refused.

        Raises:
            UserError: naming the column that is damaged.
        """
        columns = {}
        for name, entries in table.items():
            check(entries, COLUMN, path, f"columns.{name}")
            if strange := entries.keys() - {key.removesuffix("?") for key in COLUMN}:
                raise UserError(f"{path}: columns.{name} has {sorted(strange)[0]!r}, which says nothing")
            try:
                columns[name] = Column(**{**entries, "levels": tuple(entries.get("levels", ()))})
            except UserError as error:
                raise UserError(f"{path}: columns.{name}: {error}") from error
        return cls(columns, spellings or Spellings())

    def naming(self, name: str) -> Dictionary:
        """The same with a column of names that stay at their site, where it has none of this name; none for no name."""
        if not name or name in self.columns:
            return self
        return Dictionary({**self.columns, name: Column("name")}, self.spellings)

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Least and most of the columns that have both; of a flag 0 and 1."""
        flags = {name: (0.0, 1.0) for name, column in self.columns.items() if column.kind == "flag"}
        numbers = {
            name: (column.least, column.most) for name, column in self.columns.items()
            if column.least is not None and column.most is not None
        }  # fmt: skip
        return flags | numbers

    def as_table(self) -> dict[str, dict[str, Any]]:
        """Undoes :meth:`from_table`."""
        table = {}
        for name, column in self.columns.items():
            entries: dict[str, Any] = {"kind": column.kind, "levels": list(column.levels), "unit": column.unit}
            entries |= {"least": column.least, "most": column.most, "about": column.about}
            table[name] = {key: value for key, value in entries.items() if value not in (None, "", [])}
        return table

    @classmethod
    def from_sample(
        cls, df: pd.DataFrame, names: Sequence[str], categories: Collection[str] = (), groups: Collection[str] = (),
        spellings: Spellings | None = None,
    ) -> Dictionary:  # fmt: skip
        """A first draft from a sample without real rows: kinds and levels as they are there, no ranges.

        No one can say of whole numbers whether they are levels: they are taken as numbers.

        Args:
            df: the sample.
            names: the columns that are used.
            categories: those of them that are no numbers, whatever they look like.
            groups: others, of names that stay at their site.
            spellings: what becomes of names that are spelled alike; by default they are refused.

        Raises:
            UserError: for a column that is not there, or levels that are spelled alike.
        """
        how = spellings or Spellings()
        columns = {name: Column("name") for name in groups}
        for name in (*names, *groups):
            one_column(df, name)
        for name in names:
            values = joined(df[name].dropna(), how[name])
            kinds: dict[str, Kind] = {"b": "flag", "i": "whole", "u": "whole", "f": "number"}
            kind = "category" if name in categories else kinds.get(values.dtype.kind, "category")
            levels = _levels(values) if kind == "category" else ()
            columns[name] = Column(kind, levels)
        return cls(columns, how)

    def with_order(self, df: pd.DataFrame, name: str) -> Dictionary:
        """The same with an ordinal response as a category: whole numbers ascend, text is as the sample has it.

        Args:
            df: the sample.
            name: of the response.

        Raises:
            UserError: for numbers with decimals.
        """
        values = df[name].dropna()
        if values.dtype.kind in "iufb":
            if not (values == np.floor(values)).all():
                raise UserError(f"an ordinal response is whole numbers or text here, and {name!r} has decimals")
            return Dictionary(
                {**self.columns, name: Column("category", tuple(int(v) for v in np.unique(values)))}, self.spellings
            )
        if getattr(values.dtype, "ordered", False):
            return Dictionary({**self.columns, name: Column("category", tuple(values.cat.categories))}, self.spellings)
        levels = tuple(str(value) for value in values.unique())
        log.warning(
            "the levels of %r are in the order of the sample, %s: if theirs is another, change levels in study.toml",
            name, " < ".join(levels),
        )  # fmt: skip
        return Dictionary({**self.columns, name: Column("category", levels)}, self.spellings)

    def written(self, path: Path, names: Collection[str], reading: Reading | None = None) -> pd.DataFrame:
        """A file; entries of a category of words among these columns are taken as they are written.

        Args:
            path: of the file.
            names: the columns that are used.
            reading: what the file does not say of itself; types, orders and references are the dictionary's.

        Raises:
            UserError: for a file that cannot be read.
        """
        words = {
            name for name in names
            if self.columns[name].kind == "name" or isinstance(next(iter(self.columns[name].levels), None), str)
        }  # fmt: skip
        if not str(path).lower().endswith(ENDINGS):
            raise unknown("table", str(path), [f"FILE{ending}" for ending in ENDINGS])
        # A range says which numbers there may be, levels which words.
        known = {name for name in names if self.columns[name].levels or self.columns[name].ranged}
        return read_file(path, reading or Reading(), used=set(names) - words, text=words, known=known, remedies=SITE)

    def table(self, path: Path, names: Collection[str], reading: Reading | None = None) -> pd.DataFrame:
        """These columns of a file, checked; see :meth:`written`.

        Raises:
            UserError: for a file that cannot be read, or does not fit.
        """
        return self.read(self.written(path, names, reading), sorted(names))

    def read(self, df: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
        """A site's columns, checked, each of the type that every site's has.

        Args:
            df: the site's table.
            names: the columns that are used.

        Raises:
            UserError: in one line, for the first column that is not there or does not fit; it holds no value.
        """
        columns = {}
        for name in names:
            if name not in self.columns:
                raise unknown("column of the dictionary", name, self.columns)
            if name not in df.columns:
                raise lacks(name, df)
            values = as_agreed(one_column(df, name), self.columns[name].levels, self.spellings[name])
            if problem := self.columns[name].misfit(values):
                raise UserError(f"column {name!r} {problem}")
            columns[name] = self.columns[name].typed(values)
        return df[[]].assign(**columns)
