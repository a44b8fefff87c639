"""Types of a table's columns: which ones a formula reads, as what, and whether a new table has the same.

A number is the same number in every type. Whole numbers of 8 or 16 bits wrap around when they are squared, truth values
are not added, and half precision rounds: so a formula's numbers are double precision, whatever holds them.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from ..column_names import one_column
from .literals import category_columns

if TYPE_CHECKING:
    import pandas as pd

    from .parsed import Formula

#: largest whole number of 64 bits
MOST_WHOLE = 2**63 - 1
#: words that mean True beside others
TRUE = ("true", "t", "yes", "y")


def readable(column: pd.Series) -> pd.Series:
    """A column without missing values as double precision or whole numbers, truth values, text or a category.

    Args:
        column: as the table has it, (n,).

    Raises:
        UserError: for a column of another type, with a way to make numbers or text of it.
    """
    import pandas as pd

    dtype: Any = column.dtype
    if isinstance(dtype, pd.CategoricalDtype | pd.StringDtype):
        return column
    if isinstance(dtype, pd.SparseDtype):
        return readable(column.sparse.to_dense())
    if isinstance(dtype, pd.PeriodDtype):
        raise _refused(column, "periods", f"{_df(column)} = {_df(column)}.dt.year takes their years")
    if isinstance(dtype, pd.IntervalDtype):
        raise _refused(column, "intervals", f"{_df(column)} = {_df(column)}.astype(str) makes them a category")
    if dtype.kind == "M":
        raise _dates(column, column.min())
    if dtype.kind == "m":
        raise _refused(
            column, "time spans", f"{_df(column)} = {_df(column)}.dt.total_seconds() / 86400 makes them days"
        )
    if dtype.kind == "c":
        raise _refused(column, "complex numbers", f"{_df(column)} = np.real({_df(column)}) takes their real part")
    if dtype.kind == "b":
        return column.astype(bool)
    if dtype.kind in "iu":
        return column.astype("int64" if not len(column) or column.max() <= MOST_WHOLE else "float64")
    if dtype.kind == "f":
        return column.astype("float64")
    return _of_objects(column if pd.api.types.is_object_dtype(dtype) else column.astype(object))


def _of_objects(column: pd.Series) -> pd.Series:
    """A column of Python objects."""
    import pandas as pd

    kinds = set(map(type, column))
    if all(issubclass(kind, str) for kind in kinds):
        return column
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return column.astype(bool)
    real = [issubclass(kind, Real | np.number) and not issubclass(kind, bool | np.complexfloating) for kind in kinds]
    if all(is_real or issubclass(kind, Decimal) for is_real, kind in zip(real, kinds, strict=True)):
        return _numbers(column)
    if all(issubclass(kind, datetime.date | np.datetime64) for kind in kinds):
        dates = pd.to_datetime(column, utc=None)
        raise _dates(column, dates.min(), parsed=True)
    if all(issubclass(kind, datetime.timedelta | np.timedelta64) for kind in kinds):
        way = f"{_df(column)} = pd.to_timedelta({_df(column)}).dt.total_seconds() / 86400 makes them days"
        raise _refused(column, "time spans", way)
    if all(issubclass(kind, complex | np.complexfloating) for kind in kinds):
        way = f"{_df(column)} = np.real({_df(column)}.astype(complex)) takes their real part"
        raise _refused(column, "complex numbers", way)
    if kinds == {bytes}:
        raise _refused(column, "bytes", f"{_df(column)} = {_df(column)}.str.decode('utf-8') makes them text")
    named = " and ".join(sorted(kind.__name__ for kind in kinds))
    if len(kinds) > 1:
        raise _refused(
            column, f"values of several types ({named})",
            f"{_df(column)} = {_df(column)}.astype(str).astype('category') makes them a category, and "
            f"pd.to_numeric({_df(column)}) numbers",
        )  # fmt: skip
    raise _refused(column, f"{named} objects", "it reads numbers, truth values, text and categories")


def _numbers(column: pd.Series) -> pd.Series:
    """Numbers of Python, decimals and fractions among them, as NumPy's.

    Raises:
        UserError: for numbers that double precision does not have.
    """
    values = column.tolist()
    if all(isinstance(value, int | np.integer) for value in values):
        if any(abs(value) > sys.float_info.max for value in values):
            raise _refused(column, "a whole number that double precision does not reach", "give it in another unit")
        fits = all(-MOST_WHOLE <= value <= MOST_WHOLE for value in values)
        return column.astype("int64" if fits else "float64")
    for value in values:
        # A decimal is exact where it is what Python writes of its nearest double.
        exact = Decimal(repr(float(value))) == value if isinstance(value, Decimal) else True
        if not exact and np.isfinite(float(value)):
            raise _refused(
                column, f"{value!r}, which has more digits than double precision",
                f"{_df(column)} = {_df(column)}.astype(float) rounds them",
            )  # fmt: skip
    return column.astype("float64")


def _dates(column: pd.Series, first: Any, parsed: bool = False) -> UserError:
    dates = f"pd.to_datetime({_df(column)})" if parsed else _df(column)
    way = f"{_df(column)} = ({dates} - pd.{first!r}).dt.days counts the days from the first one"
    return _refused(column, "dates", way)


def _refused(column: pd.Series, what: str, way: str) -> UserError:
    return UserError(f"column {str(column.name)!r} holds {what}, which no formula reads: {way}")


def _is_written_number(level: object) -> bool:
    """Whether ``astype(float)`` makes a number of it."""
    try:
        float(level)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _df(column: pd.Series) -> str:
    """The column as Python code."""
    return f"df[{column.name!r}]"


def typed(df: pd.DataFrame, terms: Formula, names: Collection[str]) -> pd.DataFrame:
    """A table of :func:`typed_columns`; arguments likewise."""
    return df[[]].assign(**typed_columns(df, terms, names))


def typed_columns(df: pd.DataFrame, terms: Formula, names: Collection[str]) -> dict[str, pd.Series]:
    """Columns of a table as a formula reads them.

    Whole numbers and truth values among the predictors are double precision numbers, but for those of which the formula
    makes categories: their levels are called 1 and True, not 1.0.

    Args:
        df: the table.
        terms: of the formula.
        names: the columns, without missing values.

    Raises:
        UserError: for a column that no formula reads.
    """
    whole = terms.predictors - category_columns(terms)
    columns = {}
    for name in names:
        column = readable(one_column(df, name))
        is_number = column.dtype.kind in "biu"
        columns[name] = column.astype("float64") if name in whole and is_number else column
    return columns


def truth_columns(df: pd.DataFrame, names: Collection[str]) -> frozenset[str]:
    """Which columns, without missing values, hold True and False."""
    return frozenset(name for name in names if readable(one_column(df, name)).dtype.kind == "b")


@dataclass(frozen=True)
class ColumnTypes:
    """What the predictors of a fit were.

    Attributes:
        numbers: those with numbers or truth values.
        levels: of the others, the levels that they had.
        truths: columns of True and False in the table, whatever the formula makes of them.
    """

    numbers: frozenset[str] = frozenset()
    levels: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    truths: frozenset[str] = frozenset()

    @classmethod
    def from_table(cls, df: pd.DataFrame, names: Collection[str], truths: frozenset[str] = frozenset()) -> ColumnTypes:
        """Those of columns that :func:`typed` has read."""
        numbers = frozenset(name for name in names if df[name].dtype.kind in "biuf")
        return cls(numbers, {name: tuple(df[name].unique()) for name in sorted(set(names) - numbers)}, truths)

    def as_fitted(self, name: str, column: pd.Series, category: bool) -> pd.Series:
        """A column of new rows in the type of the fit.

        A category of True and False takes 1 and 0, and one of numbers True and False: they are the same numbers, but
        not the same levels to pandas.

        Args:
            name: of the column.
            column: of a new table, as :func:`readable` has read it.
            category: whether the formula makes a category of it.

        Raises:
            UserError: for a column of another type than in the fit, and for a number instead of True and False that
                is neither 0 nor 1, nor a share between them where it is no category.
        """
        is_number = column.dtype.kind in "biuf"
        if name in self.numbers and not is_number:
            raise _no_number(name, column, name in self.truths)
        words = self.levels.get(name, ())
        if is_number and words and all(isinstance(level, str) for level in words):
            raise UserError(
                f"column {name!r} holds numbers, and text such as {words[0]!r} in the fit: "
                f"{_df(column)} = {_df(column)}.astype(str)"
            )
        if name not in self.truths:
            return column.astype("int64") if category and name in self.numbers and column.dtype.kind == "b" else column
        between = column.isin([0, 1]) if category else column.between(0, 1)
        if not between.all():
            raise UserError(
                f"column {name!r} holds {column[~between].iloc[0]:g}, and True and False in the fit: "
                "1 is True, and 0 is False"
            )
        return column.astype(bool) if category else column


def _no_number(name: str, column: pd.Series, truth: bool) -> UserError:
    """The error for text in a column that had numbers in the fit, or True and False."""
    first, frame_column = column.iloc[0], _df(column)
    what = f"text such as {first!r}" if isinstance(first, str) else "a category"
    levels = column.unique().tolist()
    way = f"{frame_column} = {frame_column}.astype(float)"
    if all(level in ("True", "False") for level in levels):
        way = f"{frame_column} = {frame_column} == 'True'"
    elif all(isinstance(level, str) and level.lower() in ("true", "false") for level in levels):
        way = f"{frame_column} = {frame_column}.str.lower() == 'true'"
    elif words := [level for level in levels if isinstance(level, str) and level.strip().lower() in TRUE]:
        way = f"{frame_column} = {frame_column} == {words[0]!r} is 1 for {words[0]!r} and 0 for others"
    elif truth and not all(map(_is_written_number, levels)):
        way = f"1 is True, and 0 is False, as of {frame_column} == LEVEL with the level that means True"
    elif strange := next((level for level in levels if not _is_written_number(level)), ""):
        way = f"{frame_column} = {frame_column} == {strange!r} is 1 for {strange!r} and 0 for others"
        if any(map(str.isdigit, strange)):
            way = f"{strange!r} is none that Python reads, as 1.5 is"
    return UserError(f"column {name!r} holds {what}, and {'True and False' if truth else 'numbers'} in the fit: {way}")
