"""How missing values are written, and which of these words may be data."""

from __future__ import annotations

from collections.abc import Collection

#: entries of a file that are missing values: those of pandas
MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null")
)  # fmt: skip
#: entries that may be a missing value or the level of a category: NA is Namibia's code
AMBIGUOUS_WORDS = frozenset(("NA", "None", "NULL", "null"))
#: others that are written for missing values, in any case of letters
SIGNS = frozenset((".", "..", "-", "--", "---", "*", "?", "??", "missing", "n.a.", "n.a", "na", "not available"))
#: numbers that are written for missing values
SENTINELS = tuple(sign * code for code in (9.0, 99.0, 999.0, 9999.0, 99999.0) for sign in (-1, 1))
#: a code of one digit is beside so many other values at most: counts may be 9
MOST_FEW = 3


def is_unsure(word: str) -> bool:
    """Whether a word among the levels of a category may be a missing value."""
    return word in AMBIGUOUS_WORDS or word.lower() in SIGNS


def unsure_among(cells: Collection[str]) -> list[str]:
    """Which entries of a column of words may be missing values; so may 9, 99 or -9 if no other entry has a digit."""
    result = [cell for cell in cells if is_unsure(cell.strip())]
    numbers = [cell for cell in cells if cell.strip().lstrip("+-").isdigit()]
    words = [cell for cell in cells if cell not in result and cell not in numbers]
    plain = not any(letter.isdigit() for word in words for letter in word)
    if len(words) > 1 and plain and len({*map(str.strip, numbers)}) == 1 and float(numbers[0]) in SENTINELS:
        result += numbers
    return result


def sentinel(numbers: Collection[float]) -> float | None:
    """A number that looks like a code for missing values, among a column's different numbers; None without one.

    It lies farther from the others than they lie from each other; or it is -99 or less, and no other is negative.
    """
    for code in SENTINELS:
        if code in numbers:
            others = [number for number in numbers if number != code and number not in SENTINELS]
            if len(others) < 2 or (abs(code) < 10 and len(others) > MOST_FEW):
                continue
            least, most = min(others), max(others)
            apart = max(least - code, code - most) > most - least
            if apart or (code <= -99 and least >= 0):
                return code
    return None
