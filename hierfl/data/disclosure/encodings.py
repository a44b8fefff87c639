"""Columns of a formula that write single rows into the digits of a sum.

The sum of ``exp2(4 * (clip(age, 60, 72) - 60))`` has, as a hexadecimal number, how many rows have each age: each age is
a digit. A function that does so stretches the distances of its column's values over many magnitudes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from .own_rows import OwnRows
from .rule import Limits, Rule, worst

#: how many times further than its source's the values of a column may spread, largest by smallest distance
STRETCH = 1000.0


def encoding_rules(own: OwnRows, limits: Limits) -> Iterator[Rule]:
    """Of every column that a formula makes of numbers.

    Args:
        own: the site's rows.
        limits: of the site's policy.
    """
    tried = []
    for name, values in own.design.items():
        sources = [
            own.numbers[number] for number in own.numbers if re.search(rf"(?<!\w){re.escape(number)}(?!\w)", name)
        ]
        if not sources or name in own.numbers:
            continue
        for part, rows in own.parts():
            most = STRETCH * max(spread(source[rows]) for source in sources)
            reached = spread(values[rows])
            margin = f"its values' distances reach over {reached:.3g} times the smallest, at most {most:.3g}"
            tried.append((most / reached, Rule(f"{name}, {part}", reached <= most, margin)))
    if tried:
        yield worst("digits of a column's sum", tried)


def spread(values: np.ndarray) -> float:
    """Largest by smallest distance from the value that most rows have, from the least or from the largest, (n,): the
    most of the three; 1 where all are the same.
    """
    found, counts = np.unique(values, return_counts=True)
    most = 1.0
    for base in (found[counts.argmax()], found[0], found[-1]):
        apart = np.abs(found - base)
        apart = apart[apart > 0]
        with np.errstate(over="ignore"):
            most = max(most, float(apart.max() / apart.min())) if len(apart) else most
    return most
