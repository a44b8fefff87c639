"""Text that may be numbers: what it looks like, and how it is read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from .dates import kinds_of
from .missing_words import unsure_among
from .numbers import NumberFormat, undecorated, without_unit
from .options import Reading
from .remedies import Remedies, either

#: a column in which more than this share of the entries are numbers is meant to hold numbers
NUMERIC_MAJORITY = 0.5
#: a column of text with so many levels a row names its rows, from so many rows on
LEVELS_SHARE, LEAST_ROWS = 2 / 3, 10
#: different entries that may be called missing values in one message
MOST_MISSING = 5
#: ways of writing numbers that are no plain numbers
FORMATS = tuple(
    NumberFormat(*marks)
    for marks in ((".", ","), (",", ""), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
)
#: as Python writes them
POINTS = NumberFormat()


#: a month and a number without the other part of a date: Jan-20, 20-Jan, Jan 20th
_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?)"
)
_PARTLY_DATE = re.compile(
    rf"{_MONTH}[.\s/,'-]+\d{{1,2}}(?:st|nd|rd|th)?|\d{{1,2}}(?:st|nd|rd|th)?[.\s/'-]+(?:of\s+)?{_MONTH}\.?",
    re.IGNORECASE,
)

#: units of which a time or a length may have several: 7 years 9 months, 1h 30m
_PARTS = (
    "(?i:y|yrs?|years?|mo|months?|w|weeks?|d|days?|h|hrs?|hours?|m|mins?|minutes?|s|secs?|seconds?|ft|in|lbs?|oz)[.,]?"
)
#: times of a day, times and lengths in several units, fractions, and numbers with a sign that says more of them
_NEARLY = re.compile(
    r"\d{1,2}:\d{2}(:\d{2})?|[~\u2248]\s*\d[\d.,]*|\d[\d.,]*\s*[*\u2020'\"\u2032]|(\d[\d.,]*\s*)?[\u00bc-\u00be\u2150-\u215e]|\d+\.-|\d{1,3}(_\d{3})+(\.\d*)?"
    r"|[+-]?\d*\.\d*[dD][+-]?\d+|[+-]?\d[\d.,]*\s*[*x\u00d7\u00b7.]\s*10\s*\^\s*[+-]?\d+"
    r"|(\d+\s+)?\d{1,3}\s*[/\u2044]\s*\d{1,3}|\[[+-]?\d[\d.,]*\]|\d+,--?|0[xX][0-9a-fA-F]+|\d[\d.,]*-"
    rf"|\d+\s*['\u2032]\s*\d+\s*[\"\u2033]?|(\d+\s*({_PARTS})\s*){{2,}}"
)


@dataclass(frozen=True)
class Disguise:
    """What a column of text may be.

    Attributes:
        what: in words.
        ways: what has to be said of it, each with what it then reads; several where it is not sure.
        shows: whether an entry is one of those that look like it.
    """

    what: str
    ways: tuple[tuple[Mapping[str, Any], str], ...]
    shows: Mapping[str, bool]


def usual(reading: Reading) -> NumberFormat:
    """How a reading says that numbers are written."""
    return NumberFormat(reading.decimal or ".", reading.thousands)


def refuse_disguise(
    name: str, cells: Sequence[str], rows: Sequence[int], reading: Reading, remedies: Remedies, *, words: bool = True
) -> None:
    """Refuses text that is not surely a category.

    Args:
        name: of the column.
        cells: its entries without those that are missing.
        rows: where each one is, for the message.
        reading: how the table was read.
        remedies: how they are written.
        words: whether words that may be missing values are refused among others.

    Raises:
        UserError: with three of the entries, and what reads them.
    """
    counts, plain = Counter(cells), usual(reading)
    unsure = unsure_among(counts)
    text = {cell: k for cell, k in counts.items() if cell not in unsure}
    whole, labels = sum(text.values()), False
    category = remedies.say(types={name: "category"})

    def where(some: Sequence[str]) -> str:
        return rows_shown(some, cells, rows, remedies)

    def missing(some: Sequence[str]) -> dict[str, Any]:
        return {"na": (*reading.na, *map(str.strip, some))} if 0 < len(some) <= MOST_MISSING else {}

    strays = [cell for cell in text if plain.plain(cell) is None]
    numbers = whole - sum(text[cell] for cell in strays)
    if result := _disguise(name, text, reading) if strays else None:
        looks = [cell for cell in strays if result.shows[cell]]
        rest = [*(cell for cell in text if not result.shows[cell]), *unsure]
        if other := [cell for cell in rest if POINTS.plain(cell) is not None]:
            # A number is no missing value because another mark is in it.
            raise UserError(
                f"column {name!r} holds {result.what}, {where(looks[:1])}, and others, {where(other[:1])}: write them "
                f"alike, or say {category} for levels"
            )
        ends: dict[str, list[str]] = {}
        for way, what in result.ways:
            ends.setdefault(remedies.say(**{**way, **missing(rest)}), []).append(what)
        ways = [f"{option} {' or '.join(whats)}" for option, whats in ends.items()]
        if numbers < NUMERIC_MAJORITY * whole:
            also = f", and also {where(rest)}" if rest else ""
            holds = f"{result.what} as text, {', '.join(map(repr, looks[:3]))}{also}"
        else:
            holds = f"numbers, but also {where([*strays, *unsure])}"
    elif whole and numbers >= NUMERIC_MAJORITY * whole:
        if not strays and not unsure:
            ways = [f"{remedies.say(types={name: 'number'})} to read them"]
            holds = f"numbers as text, {', '.join(map(repr, list(text)[:3]))}"
        else:
            labels = bool(strays)
            holds, declared = f"numbers, but also {where([*strays, *unsure])}", missing([*strays, *unsure])
            ways = [f"{remedies.say(**declared)} for missing values"] if declared else []
    elif unsure and words:
        holds, ways = f"{where(unsure)} beside other text", [f"{remedies.say(**missing(unsure))} for missing values"]
    elif (
        len(text) > 1
        and sum(k for cell, k in text.items() if _PARTLY_DATE.fullmatch(cell.strip())) > NUMERIC_MAJORITY * whole
    ):
        shown = ", ".join(map(repr, [cell for cell in text if _PARTLY_DATE.fullmatch(cell.strip())][:3]))
        raise UserError(
            f"column {name!r} holds months with a day or a year, {shown}: write whole dates, such as 2020-01-31, or "
            f"say {category} for levels"
        )
    elif units := _several_units(text):
        raise UserError(
            f"column {name!r} holds numbers with several units, {', '.join(map(repr, units[:4]))}: write them in one, "
            f"or say {category} for levels"
        )
    elif sum(k for cell, k in text.items() if _NEARLY.fullmatch(undecorated(cell))) > NUMERIC_MAJORITY * whole:
        shown = ", ".join(map(repr, list(text)[:3]))
        raise UserError(
            f"column {name!r} holds times, fractions or marked numbers as text, {shown}: write plain numbers, or say "
            f"{category} for levels"
        )
    elif whole >= LEAST_ROWS and len(text) >= LEVELS_SHARE * whole:
        holds, ways = f"text with {len(text)} levels in {whole} rows, {', '.join(map(repr, list(text)[:3]))}", []
    else:
        return
    ways.insert(0 if labels else len(ways), f"{category} for levels")
    raise UserError(f"column {name!r} holds {holds}: say {either(ways)}")


def rows_shown(some: Sequence[str], cells: Sequence[str], rows: Sequence[int], remedies: Remedies) -> str:
    """Three different ones of some entries with their first places, and how many more there are."""
    wanted, places, count = set(some), dict[str, int](), 0
    for k, cell in enumerate(cells):
        if cell in wanted:
            places.setdefault(cell, rows[k])
            count += 1
    shown = list(places.items())[:3]
    first = ", ".join(f"{cell!r} ({remedies.row} {row})" for cell, row in shown)
    return first + (f" and {count - len(shown)} more" if count > len(shown) else "")


def _disguise(name: str, text: Mapping[str, int], reading: Reading) -> Disguise | None:
    """What most of the entries look like, if anything but plain numbers."""
    plain, whole = usual(reading), sum(text.values())
    best: Disguise | None = None
    most = 0.0
    for result in _candidates(name, text, reading):
        share = sum(k for cell, k in text.items() if result.shows[cell]) / whole
        strange = any(shown and plain.plain(cell) is None for cell, shown in result.shows.items())
        if strange and share > max(most, NUMERIC_MAJORITY):
            best, most = result, share
    return best


def _several_units(text: Mapping[str, int]) -> list[str]:
    """Units of a column of numbers that have more than one.

    Stages such as 1a and 1b have letters of the alphabet behind their numbers, and are levels: one of the units has to
    have two letters or to be a currency, or all of them are thousands and millions.
    """
    split = {cell: without_unit(cell) for cell in text}
    units = {cell: unit for cell, (number, unit) in split.items() if unit and POINTS.plain(number.replace(",", "."))}
    different = sorted(set(units.values()))
    sure = any(len(unit) > 1 or not unit.isalpha() for unit in different) or set(different) <= {*"kKmMbB"}
    numbers = sum(k for cell, k in text.items() if cell in units or POINTS.plain(cell) is not None)
    return different if len(different) > 1 and sure and numbers > NUMERIC_MAJORITY * sum(text.values()) else []


def _candidates(name: str, text: Mapping[str, int], reading: Reading) -> list[Disguise]:
    """All that it may be; first what can be said without contradicting what was."""
    plain = usual(reading)
    result = []
    for format_tried in (*FORMATS, POINTS):
        shows = {cell: format_tried.plain(cell) is not None for cell in text}
        strange = [cell for cell in text if shows[cell] and plain.plain(cell) is None]
        if strange:
            ways = _ways(name, format_tried, [cell for cell in text if shows[cell]], strange[0], reading)
            result.append(Disguise(_named(format_tried), tuple(ways), shows))
    result.sort(key=lambda disguise: not disguise.ways)
    split = {cell: without_unit(cell) for cell in text}
    for format_tried in (plain, *(format_tried for format_tried in FORMATS if _may_be(format_tried, reading))):
        numbers = {cell: split[cell][0] for cell in text if format_tried.plain(split[cell][0]) is not None}
        units = {split[cell][1] for cell in numbers} - {""}
        strange = [cell for cell in numbers if format_tried.plain(cell) is None]
        bare = any(not split[cell][1] for cell in numbers)
        if len(units) > 1 or not strange or (bare and units & {"%", "\u2030"}):
            continue
        value = format_tried.plain(numbers[strange[0]])
        ways = [({}, f"to read {value}")]
        if format_tried != plain:
            ways = _ways(name, format_tried, list(numbers.values()), numbers[strange[0]], reading)
        ways = [({**declared, "types": {name: "number"}}, reads) for declared, reads in ways]
        if units == {"%"}:
            ways.append(({**ways[0][0], "types": {name: "percent"}}, f"to read {float(value or 0) / 100:g}"))
        shows = {cell: cell in numbers for cell in text}
        result.append(Disguise(f"numbers with {next(iter(units))!r}" if units else "numbers", tuple(ways), shows))
    order = {"date": "", "date-dmy": " with the day first", "date-mdy": " with the month first"}
    kinds, shows = kinds_of(text)
    dates = tuple(({"types": {name: kind}}, f"to read dates{order[kind]}") for kind in kinds)
    return [*result, Disguise("dates", dates, shows)]


def _ways(
    name: str, form: NumberFormat, cells: Sequence[str], example: str, reading: Reading
) -> list[tuple[Mapping[str, Any], str]]:
    """What has to be said so that such numbers are read; several ways where they may be others."""
    ways = [_way(form, example)] if _may_be(form, reading) else []
    if form == POINTS:  # a column that is written otherwise than the file
        ways = [({"types": {name: "number"}}, f"to read {POINTS.plain(example)}")]
    other = NumberFormat(form.thousands) if form.thousands in (".", ",") else None
    if ways and other and all(other.plain(cell) is not None for cell in cells):  # 6,968 may be less than seven
        if other == POINTS:
            ways += _ways(name, POINTS, cells, example, reading)
        elif _may_be(other, reading):
            ways.append(_way(other, example))
    return ways


def _may_be(form: NumberFormat, reading: Reading) -> bool:
    """Whether it is no other than what was said."""
    return reading.decimal in ("", form.decimal) and reading.thousands in ("", form.thousands)


def _named(form: NumberFormat) -> str:
    marks = {" ": "blanks", "'": "apostrophes", ",": "commas", ".": "points"}
    if not form.thousands:
        return "numbers with decimal commas" if form.decimal == "," else "numbers with decimal points"
    return f"numbers with {marks[form.thousands]} between thousands" + (
        " and decimal commas" if form.decimal == "," else ""
    )


def _way(form: NumberFormat, example: str) -> tuple[Mapping[str, Any], str]:
    """What has to be said of such numbers."""
    declared = {"decimal": form.decimal} if form.decimal != "." else {}
    declared |= {"thousands": form.thousands} if form.thousands else {}
    return declared, f"to read {form.plain(example)}" if example else ""
