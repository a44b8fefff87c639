"""Columns of text become numbers, truth values, words or categories."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UserError
from ..spellings import has_stray_quote
from .compact_dates import refuse_compact_dates
from .dates import DATES, days, kinds_of
from .disguise import MOST_MISSING, POINTS, refuse_disguise, rows_shown, usual
from .missing_words import AMBIGUOUS_WORDS, MISSING, is_unsure, sentinel, unsure_among
from .numbers import NumberFormat, is_whole, truth_value, without_unit
from .options import Reading
from .quantities import quantity_note
from .remedies import Remedies, either
from .spelled_numbers import THOUSANDS_POINTS, refuse_points, refuse_zeros

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("hierfl")


@dataclass(frozen=True)
class Typing:
    """Finds the types of columns.

    Attributes:
        reading: what is declared.
        remedies: how remedies are written in messages.
        known: columns of which it is declared elsewhere which numbers or levels they have.
        notes: whether a line says of categories that look like quantities.
        decimals: columns in whose numbers a point is surely a decimal mark.
    """

    reading: Reading
    remedies: Remedies
    known: Collection[str] = ()
    notes: bool = True
    decimals: Collection[str] = ()

    def named(self, name: str, cells: Sequence[str], rows: Sequence[int]) -> pd.Series:
        """A column of names, as they are written; only empty ones, and those that are declared so, are missing.

        Raises:
            UserError: for signs such as ``.`` that may be a missing name.
        """
        import pandas as pd

        sure = name in self.known or name in self.reading.categories()
        signs = [] if sure else sorted({c for c in cells if self._is_sign(c)})
        if signs:
            raise UserError(
                f"column {name!r} holds {rows_shown(signs, cells, rows, self.remedies)} among its names: say "
                f"{self.remedies.say(na=(*self.reading.na, *map(str.strip, signs)))} if these are missing values, or "
                f"{self.remedies.say(types={name: 'category'})} if they are names"
            )
        self._note_quotes(name, cells, rows)
        return pd.Series([None if self._is_declared_missing(cell) else cell for cell in cells], dtype="str")

    def _note_quotes(self, name: str, cells: Sequence[str], rows: Sequence[int]) -> None:
        """Says which names have a quote without its other half; a study's sites show no names."""
        if not self.remedies.study and self.notes and (strays := [*filter(has_stray_quote, set(cells))]):
            shown = rows_shown(strays, cells, rows, self.remedies)
            log.warning("column %r holds %s: the unpaired quote is read as part of the name", name, shown)

    def column(
        self, name: str, cells: Sequence[str], rows: Sequence[int], *, strict: bool, split: bool = False
    ) -> pd.Series:
        """A column of whole numbers, numbers, truth values, words or levels.

        Args:
            name: of the column.
            cells: its entries.
            rows: where each one is, for messages.
            strict: whether its values are used: what is not sure is then refused.
            split: whether the formula makes it a category.

        Raises:
            UserError: for entries that are not of the declared type; if ``strict``, for text that may be numbers, and
                for numbers or words that may be missing values.
        """
        if name in self.reading.categories():
            return self._category(name, cells, rows)
        if kind := self.reading.types.get(name):
            return self._declared(name, kind, cells, rows)
        return self._undeclared(name, cells, rows, strict, split)

    def _is_declared_missing(self, cell: str) -> bool:
        return not cell.strip() or cell.strip() in self.reading.na

    def _is_missing(self, cell: str) -> bool:
        return self._is_declared_missing(cell) or cell.strip() in MISSING

    def _is_sign(self, cell: str) -> bool:
        word = cell.strip()
        return (
            is_unsure(word)
            and word not in AMBIGUOUS_WORDS
            and word != "*"
            and word.lower() != "na"
            and not self._is_declared_missing(cell)
        )

    def codes(self) -> set[float]:
        """Missing values that are written as numbers."""
        plain = [usual(self.reading).plain(word) for word in self.reading.na]
        return {float(number) for number in plain if number is not None}

    def _format(self, name: str, present: Sequence[str]) -> NumberFormat:
        """How a column's numbers are written: in a file with decimal commas one may have points."""
        form = usual(self.reading)
        if form.decimal == "." or form.thousands == "." or any("," in cell for cell in present):
            return form
        declared = self.reading.types.get(name) in ("number", "percent")
        sure = any(THOUSANDS_POINTS.fullmatch(cell.strip()) is None for cell in present if "." in cell)
        return POINTS if sure or declared else form

    def _numbers(self, plain: dict[str, str | None], cells: Sequence[str]) -> pd.Series:
        """Numbers of entries that are one or missing."""
        import pandas as pd

        codes = self.codes()
        values = {cell: None if number is None else float(number) for cell, number in plain.items()}
        gone = {cell for cell, value in values.items() if value is None or value in codes}
        if not gone and all(is_whole(number or "") for number in plain.values()):
            return pd.Series([int(plain[cell] or 0) for cell in cells], dtype="int64")
        return pd.Series([float("nan") if cell in gone else values[cell] for cell in cells], dtype="float64")

    def _undeclared(self, name: str, cells: Sequence[str], rows: Sequence[int], strict: bool, split: bool) -> pd.Series:
        """A column of which nothing is declared."""
        import pandas as pd

        different = dict.fromkeys(cells)
        missing = {cell for cell in different if self._is_missing(cell)}
        form = self._format(name, [cell for cell in different if cell not in missing])
        plain = {cell: None if cell in missing else form.plain(cell) for cell in different}
        present = [cell for cell in different if cell not in missing]
        if all(plain[cell] is not None for cell in present):
            result = self._numbers(plain, cells)
            if strict and name not in self.known:
                self._check_codes(name, result)
                self._check_points(name, present)
                if split:
                    refuse_zeros(name, cells, rows, self.remedies, levels=True)
            return result
        truths = {cell: truth_value(cell) for cell in present}
        if not missing and None not in truths.values():
            return pd.Series([truths[cell] for cell in cells], dtype="bool")
        if strict:
            unsure = {
                cell for cell in missing if cell.strip() in AMBIGUOUS_WORDS and not self._is_declared_missing(cell)
            }
            kept = [k for k, cell in enumerate(cells) if cell not in missing or cell in unsure]
            if split:
                self._refuse_unsure(name, cells, rows)
            else:
                shown, places = [cells[k] for k in kept], [rows[k] for k in kept]
                refuse_disguise(name, shown, places, self.reading, self.remedies)
            self._note_quotes(name, cells, rows)
            self._note_quantities(name, cells, missing)
        return pd.Series([None if cell in missing else cell for cell in cells], dtype="str")

    def _note_quantities(self, name: str, cells: Sequence[str], missing: Collection[str]) -> None:
        """Says what is read as categories and may be meant otherwise; of a study's columns the dictionary says it."""
        if name in self.known or self.remedies.study or not self.notes:
            return
        note = quantity_note(name, Counter(cell for cell in cells if cell not in missing), self.remedies)
        if note is not None:
            log.warning("%s", note)

    def _check_codes(self, name: str, result: pd.Series) -> None:
        """Refuses dates, and numbers among which there may be a code for missing values."""
        numbers = result.dropna()
        refuse_compact_dates(name, numbers.unique().tolist(), self.remedies)
        code = sentinel(set(numbers.tolist()))
        if code is None:
            return
        others = numbers[numbers != code]
        count = int((numbers == code).sum())
        na = self.remedies.say(na=(*self.reading.na, f"{code:g}"))
        number = self.remedies.say(types={name: "number"})
        number = f"least and most of columns.{name} in study.toml" if self.remedies.study else number
        raise UserError(
            f"column {name!r} holds {code:g} in {count} row{'s' * (count > 1)}, and all others lie from "
            f"{others.min():g} to {others.max():g}: say {na} if it is a missing value, or {number} if it is a number"
        )

    def _check_points(self, name: str, present: Sequence[str]) -> None:
        if name not in self.decimals:
            refuse_points(name, [cell.strip() for cell in present], self.reading, self.remedies)

    def _declared(self, name: str, kind: str, cells: Sequence[str], rows: Sequence[int]) -> pd.Series:
        """Numbers, percentages or dates."""
        different = dict.fromkeys(cells)
        present = [cell for cell in different if not self._is_missing(cell)]
        form = self._format(name, present)
        result: dict[str, str | None] = dict.fromkeys(different)
        units = {}
        for cell in present:
            if kind in DATES:
                day = days(cell, kind)
                result[cell] = None if day is None else f"{day:.0f}" if day == int(day) else repr(day)
                continue
            number = form.plain(cell)
            bare, units[cell] = (cell, "") if number is not None else without_unit(cell)
            result[cell] = form.plain(bare)
        strays = [cell for cell in present if result[cell] is None]
        if kind == "percent":
            strays += [cell for cell in present if result[cell] is not None and units[cell] != "%"]
        several = sorted({unit for cell, unit in units.items() if result[cell] is not None} - {""})
        mixed = "%" in several and kind == "number" and any(not units[cell] for cell in units)
        if strays:
            words = {"number": "a number", "percent": "a percentage"}.get(kind, f"a {kind}")
            na = self.remedies.say(na=(*self.reading.na, *map(str.strip, strays)))
            remedy = f": say {na} if these are missing values" if len(strays) <= MOST_MISSING else ""
            where = rows_shown(strays, cells, rows, self.remedies)
            counts = dict.fromkeys(present, 1)
            if kind in DATES and (fitting := kinds_of(counts)) and all(fitting[1].values()):
                ways = [self.remedies.say(types={name: other}) for other in fitting[0]]
                remedy = f": say {either(ways)}"
            raise UserError(f"column {name!r} is declared {words}, and holds {where}{remedy}")
        if len(several) > 1 or mixed:
            raise UserError(
                f"column {name!r} has several units, {', '.join(map(repr, [*several, 'none'] if mixed else several))}: "
                "write it in one"
            )
        share = self._numbers(result, cells)
        return share.astype("float64") / 100 if kind == "percent" else share

    def _category(self, name: str, cells: Sequence[str], rows: Sequence[int]) -> pd.Series:
        """Levels as they are written: NA is one, unless it is declared to be a missing value."""
        import pandas as pd

        gone = {cell for cell in set(cells) if self._is_declared_missing(cell)}
        levels = _sorted({cell for cell in cells if cell not in gone})
        order, reference = self.reading.order.get(name), self.reading.reference.get(name)
        if order is not None:
            # What differs from a level in blanks or capitals alone is another spelling of it, for others to judge.
            spelled = {level: [other for other in levels if _folded(other) == _folded(level)] for level in order}
            joined_levels = {other for others in spelled.values() for other in others}
            if strange := [level for level in levels if level not in joined_levels]:
                na = self.remedies.say(na=(*self.reading.na, *map(str.strip, strange)))
                raise UserError(
                    f"column {name!r} holds {rows_shown(strange, cells, rows, self.remedies)}, which its order "
                    f"{'<'.join(order)!r} lacks: say {na} if these are missing values, or write them in the order"
                )
            levels = [level_spelled for level in order for level_spelled in dict.fromkeys([level, *spelled[level]])]
        elif reference is not None:
            if reference not in levels:
                shown = ", ".join(map(repr, levels[:10]))
                raise UserError(f"column {name!r} has no level {reference!r} to be its reference; it has {shown}")
            levels = [reference, *(level for level in levels if level != reference)]
        dtype = pd.CategoricalDtype(levels, ordered=order is not None)
        return pd.Series([None if cell in gone else cell for cell in cells]).astype(dtype)

    def check_missing(self, name: str, cells: Sequence[str], rows: Sequence[int], result: pd.Series) -> None:
        """Refuses a column that was found without a declaration and holds what is not sure whatever it is used for.

        Raises:
            UserError: for a code among numbers, points that may be between thousands, whole numbers that may be names
                with zeros before them, or a word that may be a missing value.
        """
        if result.dtype.kind in "iuf":
            self._check_codes(name, result)
            self._check_points(name, [cell for cell in dict.fromkeys(cells) if not self._is_missing(cell)])
            refuse_zeros(name, cells, rows, self.remedies)
        elif result.dtype.kind != "b":
            self._refuse_unsure(name, cells, rows)
            self._note_quantities(name, cells, {cell for cell in set(cells) if self._is_missing(cell)})

    def _refuse_unsure(self, name: str, cells: Sequence[str], rows: Sequence[int]) -> None:
        """Refuses words that may be levels or missing values."""
        words = sorted(unsure_among({cell for cell in cells if not self._is_declared_missing(cell)}))
        if not words:
            return
        na = self.remedies.say(na=(*self.reading.na, *map(str.strip, words)))
        where = rows_shown(words, cells, rows, self.remedies)
        raise UserError(
            f"column {name!r} holds {where} beside other text: say {na} if these are missing values, or "
            f"{self.remedies.say(types={name: 'category'})} if they are levels"
        )


def _folded(level: str) -> str:
    return " ".join(level.split()).casefold()


def _sorted(levels: set[str]) -> list[str]:
    """Sorts by number where all are whole numbers, else by letters."""
    if all(is_whole(level.strip()) for level in levels):
        return sorted(levels, key=lambda level: (int(level), level))
    return sorted(levels)
