"""Dates as they are written, as days since 1970."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import cache

from .compact_dates import compact_date
from .options import Type

#: names of the types of columns of dates
DATES: tuple[Type, ...] = ("date", "date-dmy", "date-mdy")
_CLOCK = r"(?:[T ][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?(?:Z| ?[+-][0-9]{2}:?[0-9]{2})?)?"
_YEAR_FIRST = re.compile(r"([0-9]{4})([-/.])([0-9]{1,2})\2([0-9]{1,2})(" + _CLOCK + ")")
_YEAR_LAST = re.compile(r"([0-9]{1,2})([-/.])([0-9]{1,2})\2([0-9]{4}|[0-9]{2})(" + _CLOCK + ")")
#: months are their first days
_MONTH = re.compile(r"([0-9]{4})[-/]([0-9]{2})|([0-9]{2})[-/]([0-9]{4})")
_NAMED = ("%d %b %Y", "%d %B %Y", "%b %d %Y", "%B %d %Y", "%d %b %y", "%b %d %y", "%b %Y", "%B %Y")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def days(cell: str, kind: Type) -> float | None:
    """Days since the beginning of 1970, parts of a day included; None for what is no date of this kind.

    Args:
        cell: as it is written: with the year first, with the month's name, a year and a month, as 20200131 or 202001,
            or as ``kind`` says.
        kind: "date", "date-dmy" (day, month, year) or "date-mdy".
    """
    text = cell.strip()
    if compact := compact_date(text):
        return float((compact - _EPOCH.date()).days)
    if result := _YEAR_FIRST.fullmatch(text):
        year, month, day, clock = int(result[1]), int(result[3]), int(result[4]), result[5]
    elif (result := _YEAR_LAST.fullmatch(text)) and kind != "date":
        first, second, year, clock = int(result[1]), int(result[3]), int(result[4]), result[5]
        year += 0 if len(result[4]) == 4 else 2000 if year < 69 else 1900
        day, month = (first, second) if kind == "date-dmy" else (second, first)
    elif result := _MONTH.fullmatch(text):
        year, month, day, clock = int(result[1] or result[4]), int(result[2] or result[3]), 1, ""
    else:
        return _named(text)
    try:
        whole = date(year, month, day)
        time = f"T{_two_digits(clock[1:].strip()).replace(',', '.').replace(' ', '')}" if clock else ""
        moment = datetime.fromisoformat(whole.isoformat() + time)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds() / 86400


def _two_digits(clock: str) -> str:
    return clock if clock[1:2] != ":" else f"0{clock}"


def _named(text: str) -> float | None:
    plain = " ".join(re.split(r"[\s,.-]+", text)).strip()
    if not any(letter.isalpha() for letter in plain) or not any(letter.isdigit() for letter in plain):
        return None
    for form in _NAMED:
        try:
            return float((datetime.strptime(plain, form).replace(tzinfo=UTC) - _EPOCH).days)
        except ValueError:
            continue
    return None


def kinds_of(cells: Mapping[str, int]) -> tuple[list[Type], dict[str, bool]]:
    """Kinds of dates as which most entries can be read, and which entries those are.

    One kind is enough where the year is first, or the month has a name.

    Args:
        cells: different entries, and how often each one is there.
    """
    shown = {kind: {cell: days(cell, kind) is not None for cell in cells} for kind in DATES}
    counts = {kind: sum(cells[cell] for cell, is_date in shown[kind].items() if is_date) for kind in DATES}
    best = max(counts.values())
    result: list[Type] = [kind for kind in DATES if counts[kind] == best]
    result = result[:1] if result[0] == "date" else result
    return result, shown[result[0]]
