"""Dates that are written as whole numbers: 20200131, and 202001 for a month."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date

from ...errors import UserError
from .remedies import Remedies

#: a day of this century or the last
DAY = re.compile(r"((?:19|20)[0-9]{2})(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")
#: a month of them
MONTH = re.compile(r"((?:19|20)[0-9]{2})(0[1-9]|1[0-2])")
#: so many different numbers, all of which are days or months, are hardly so by accident
LEAST_DAYS, LEAST_MONTHS = 2, 3


def compact_date(text: str) -> date | None:
    """A day, or the first day of a month; None for what is neither."""
    found = DAY.fullmatch(text) or MONTH.fullmatch(text)
    if found is None:
        return None
    try:
        return date(*map(int, found.groups()), *(() if found.re is DAY else (1,)))
    except ValueError:
        return None


def compact_dates(numbers: Collection[float]) -> str | None:
    """The first of different numbers if all of them are days, or all of them months; None otherwise.

    A difference of such numbers is no time: a new year adds 8,870 to 20191231, and one day.
    """
    least, first = LEAST_DAYS, ""
    for number in numbers:  # most columns end at their first number
        text = "" if number % 1 else str(int(number))
        if compact_date(text) is None or len(text) != len(first or text):
            return None
        first = first or text
        least = LEAST_DAYS if len(first) == 8 else LEAST_MONTHS
    return first if len(numbers) >= least else None


def refuse_compact_dates(name: str, numbers: Collection[float], remedies: Remedies) -> None:
    """Refuses numbers that are dates.

    Args:
        name: of the column.
        numbers: its different numbers, without those that are missing.
        remedies: how they are written.

    Raises:
        UserError: with the first of them, and what reads it.
    """
    if first := compact_dates(numbers):
        ways = f"{remedies.say(types={name: 'date'})} to read dates or {remedies.say(types={name: 'number'})}"
        if remedies.study:
            ways = f"least and most of columns.{name} in study.toml, and write days"
        raise UserError(
            f"column {name!r} holds dates as numbers, {first}, whose differences are no times: say {ways}"
            + ("" if remedies.study else " if they are numbers")
        )
