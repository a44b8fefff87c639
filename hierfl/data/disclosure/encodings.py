"""Columns of a formula that write single rows into the digits of a sum.

The sum of ``exp2(4 * (clip(age, 60, 72) - 60))`` has, as a hexadecimal number, how many rows have each age: each age is
a digit. A function that does so stretches the distances of its column's values over many magnitudes.

Columns of a smooth term are none of these: they are cubic between knots at equal distances, and straight beyond. Only
near a turning point do rows come near each other, by chance; whole numbers on both sides of it differ by rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from ..federated.formula_data import FormulaSite
from ..federated.study_data import SiteData
from .own_rows import OwnRows
from .rule import Rule, worst

#: how many times further than its source's the values of a column may spread, largest by smallest distance
MAX_STRETCH = 1000.0


def encoding_rules(own: OwnRows, raw: Mapping[str, np.ndarray]) -> Iterator[Rule]:
    """The rules about every column, offset and response that a formula makes of numbers.

    Args:
        own: the site's rows.
        raw: numbers of the table, {name: (n,)}.
    """
    tried = []
    for name, values in {**own.numbers, **own.design}.items():
        if name in raw or not raw or name in own.curves:
            continue
        # Of an offset or a response nothing says what it is made of: any number of the study.
        sources = [raw[number] for number in raw if re.search(rf"(?<!\w){re.escape(number)}(?!\w)", name)]
        for part, rows in own.parts():
            most = MAX_STRETCH * max(spread(source[rows]) for source in sources or raw.values())
            reached = spread(values[rows])
            margin = f"its values' distances reach over {reached:.3g} times the smallest, at most {most:.3g}"
            tried.append((most / reached, Rule(f"{name}, {part}", reached <= most, margin)))
    if tried:
        yield worst("digits of a column's sum", tried)


def raw_numbers(site: SiteData) -> dict[str, np.ndarray]:
    """Numbers of a table that a formula uses, predictors and responses, {name: (n,)}; none of other data."""
    if not isinstance(site, FormulaSite):
        return {}
    numbers = site.df.select_dtypes("number")
    return {str(name): numbers[name].to_numpy(dtype=float) for name in numbers if name in site.study.formula.used}


def spread(values: np.ndarray) -> float:
    """Largest by smallest distance from the value that most rows have, from the least or from the largest, (n,): the
    most of the three; 1 where all are the same.
    """
    distinct, counts = np.unique(values, return_counts=True)
    most = 1.0
    for base in (distinct[counts.argmax()], distinct[0], distinct[-1]):
        apart = np.abs(distinct - base)
        apart = apart[apart > 0]
        with np.errstate(over="ignore"):
            most = max(most, float(apart.max() / apart.min())) if len(apart) else most
    return most
