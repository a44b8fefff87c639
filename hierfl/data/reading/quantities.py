"""Categories whose levels look like quantities or have an order: they are kept, and a line says so."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .disguise import POINTS
from .numbers import undecorated, without_unit
from .remedies import Remedies

#: more than this share of the entries are ranges; and at least this share are numbers among other text
RANGES_SHARE, NUMBERS_SHARE = 0.5, 0.1
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:[.,]\d+)?\s?%?"
#: 3-5, 10 to 20, <5, >= 65, 5+, under 18, 65 and over
_RANGE = re.compile(
    rf"[\[(]?\s*{_NUMBER}\s*(?:-|\u2013|\u2014|to|\.\.\.?|,\s*(?=.*[\])]$))\s*{_NUMBER}\s*[\])]?"
    rf"|(?:<=?|>=?|\u2264|\u2265|under|over|below|above|up to|less than|more than|at least|at most)\s*{_NUMBER}"
    rf"|{_NUMBER}\s*(?:\+|(?:and|or)\s+(?:over|under|more|less|older|younger|above|below))",
    re.IGNORECASE,
)
#: words that have an order, from the lowest
_ORDERS: tuple[tuple[str, ...], ...] = (
    ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
     "december"),
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    ("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
    ("very low", "low", "medium", "moderate", "middle", "high", "very high"),
    ("absent", "none", "minimal", "mild", "moderate", "severe", "very severe", "critical"),
    ("never", "rarely", "seldom", "sometimes", "occasionally", "often", "usually", "always"),
    ("very poor", "poor", "fair", "average", "good", "very good", "excellent"),
    ("very small", "small", "medium", "large", "very large"),
    ("strongly disagree", "disagree", "neutral", "agree", "strongly agree"),
    ("first", "second", "third", "fourth", "fifth"),
    ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x"),
)  # fmt: skip


def quantity_note(name: str, counts: Mapping[str, int], remedies: Remedies) -> str | None:
    """What a user may not expect of a column of text that is read as categories; None for nothing.

    Args:
        name: of the column.
        counts: how often each entry comes, without those that are missing.
        remedies: how a remedy is written.
    """
    whole = sum(counts.values())
    if len(counts) < 2 or not whole:
        return None
    levels = sorted(counts)
    ranges = [level for level in levels if _RANGE.fullmatch(level.strip())]
    category = remedies.say(types={name: "category"})
    if sum(counts[level] for level in ranges) > RANGES_SHARE * whole:
        return (
            f"column {name!r} has ranges, such as {ranges[0]!r}: it is read as {len(levels)} categories, "
            f"of which {levels[0]!r} is the reference; {category} says that this is meant"
        )
    numbers = [level for level in levels if _is_amount(level)]
    if sum(counts[level] for level in numbers) >= NUMBERS_SHARE * whole and len(numbers) > 1:
        other = next((level for level in levels if level not in numbers), None)
        beside = f", beside {other!r}" if other else ""
        return (
            f"column {name!r} has numbers, such as {numbers[0]!r}{beside}: it is read as {len(levels)} categories; "
            f"{category} says that this is meant"
        )
    if order := _order(levels):
        return (
            f"column {name!r} has levels in the order of the alphabet, {levels[0]!r} first as the reference: "
            f"{remedies.say(order={name: order})} has them in theirs, and {category} says that this is meant"
        )
    return None


def _is_amount(level: str) -> bool:
    """Whether an entry is a number, alone or with a percent sign or a currency's."""
    number, unit = without_unit(level)
    sure = not unit or unit in ("%", "\u2030") or not unit[-1].isalnum()
    return sure and POINTS.plain(undecorated(number).replace(",", "")) is not None


def _order(levels: list[str]) -> tuple[str, ...]:
    """Levels in the order of their words; empty where they have none, or stand in it."""
    spelled = {level.strip().casefold(): level for level in levels}
    for words in _ORDERS:
        ordered = tuple(spelled[word] for word in words if word in spelled)
        if len(ordered) == len(levels) > 2:
            return () if list(ordered) == levels else ordered
    return ()
