"""Dates and times of a day that are written as numbers: 20200131, 202001 for a month, 200131, 8.30."""

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
#: the same of dates of six digits, of which one number in 27 is one
LEAST_SHORT = 6
_SHORT = (re.compile(r"[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])"),
          re.compile(r"(0[1-9]|[12][0-9]|3[01])(0[1-9]|1[0-2])[0-9]{2}"))  # fmt: skip
#: the same of times of a day: numbers, hours and minutes among them
LEAST_TIMES, LEAST_HOURS, LEAST_MINUTES = 20, 3, 12


def compact_date(text: str) -> date | None:
    """A day, or the first day of a month; None for what is neither."""
    match = DAY.fullmatch(text) or MONTH.fullmatch(text)
    if match is None:
        return None
    try:
        return date(*map(int, match.groups()), *(() if match.re is DAY else (1,)))
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


def short_dates(numbers: Collection[float]) -> str | None:
    """The first of different numbers if all of them are dates of six digits, 200131 or 310120; None otherwise."""
    texts = ["" if number % 1 or not 0 < number < 1e6 else str(int(number)) for number in numbers]
    if len(texts) < LEAST_SHORT or 2 * sum(len(text) == 6 for text in texts) < len(texts) or not all(texts):
        return None
    padded = [text.zfill(6) for text in texts]
    return padded[0] if any(all(map(form.fullmatch, padded)) for form in _SHORT) else None


def clock_times(numbers: Collection[float]) -> str | None:
    """One of different numbers if all of them are times of a day, 8.30 or 830; None otherwise.

    Minutes never reach 60, and they are of many kinds in many hours: numbers in decimals are hardly so by accident.
    """
    times: list[tuple[int, int]] = []
    whole = all(number % 1 == 0 for number in numbers)
    for number in numbers:  # most columns end at their first numbers
        minutes = number if whole else number * 100
        if not 0 <= minutes < 2400 or abs(minutes - round(minutes)) > 1e-6 or round(minutes) % 100 >= 60:
            return None
        times.append(divmod(round(minutes), 100))
    if len(times) < LEAST_TIMES or len({hour for hour, _ in times}) < LEAST_HOURS:
        return None
    kinds = {minute for _, minute in times}
    if len(kinds) < LEAST_MINUTES or max(kinds) < 45:
        return None
    hour, minute = next(pair for pair in times if pair[1])
    return f"{hour}{'' if whole else '.'}{minute:02}"


def numbers_of_time(numbers: Collection[float]) -> tuple[str, str] | None:
    """What different numbers are that count neither days nor hours, and how to write them; None for plain numbers."""
    if first := short_dates(numbers):
        return f"dates as numbers, {first}, whose differences are no times", "2020-01-31"
    if first := clock_times(numbers):
        return f"what may be times of a day, {first}, whose minutes end at 60", "hours"
    return None


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
    if kind := numbers_of_time(numbers):
        number = remedies.say(types={name: "number"})
        number = f"least and most of columns.{name} in study.toml" if remedies.study else number
        raise UserError(
            f"column {name!r} holds {kind[0]}: write {kind[1]} in the file, or say {number} if these are numbers"
        )
