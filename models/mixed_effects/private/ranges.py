"""Ranges of a design's columns, from what is declared of the table's columns: never from rows.

    x in [a, b]  ->  c = (x - (a + b) / 2) / ((b - a) / 2)  in [-1, 1]

A level's indicator lies in [0, 1], a sum contrast in [-1, 1], and a product of columns in the product of their ranges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hierfl.data.formula.units import INTERCEPT
from hierfl.errors import UserError

#: least and most of columns
Ranges = Mapping[str, tuple[float, float]]


class Range(NamedTuple):
    """The range of a design's column.

    Attributes:
        least, most: of its values.
        levels: the term without its levels. Of the columns that share a term at most one is not zero in a row. Empty
            for a column without levels.
    """

    least: float
    most: float
    levels: str = ""


def read_ranges(text: str) -> dict[str, tuple[float, float]]:
    """Ranges as they are written: ``age 18 95; sbp 70 230``.

    Raises:
        UserError: for a part that is no name with two numbers, the smaller one first.
    """
    ranges = {}
    for part in filter(None, (text_of_range.strip() for text_of_range in text.split(";"))):
        name, *numbers = part.rsplit(None, 2)
        try:
            least, most = map(float, numbers)
        except ValueError:
            least, most = 0.0, 0.0
        if not (abs(least) < 1e100 and abs(most) < 1e100 and least < most):
            raise UserError(f"ranges are written 'age 18 95; sbp 70 230', not {part[:60]!r}")
        ranges[name.strip("`")] = (least, most)
    return ranges


def range_of(name: str, ranges: Ranges) -> Range:
    """The range of a design's column by its name.

    Raises:
        UserError: for a column whose range is not declared.
    """
    if name in INTERCEPT:
        return Range(1.0, 1.0)
    if name in ranges:
        return Range(*ranges[name])
    least, most, levels, sums = 1.0, 1.0, False, False
    declared = {"".join(declared_name.split()): ends for declared_name, ends in ranges.items()}
    for factor in _factors(name):
        bare = factor.strip().strip("`")
        if (key := "".join(bare.split())) in declared:
            low, high = declared[key]
        elif re.fullmatch(r"(S\(|C\(.*,.*\bSum\b).*\[.*\]", factor):  # the level left out is -1 in all columns
            low, high, sums = -1.0, 1.0, True
        elif re.fullmatch(r".+\[.*\]", factor):
            low, high, levels = 0.0, 1.0, True
        else:
            raise UserError(
                f"dp='site' needs the range of column {bare!r}: least and most in the dictionary, or ranges='{bare} "
                "LEAST MOST; ...'"
            )
        ends = [a * b for a in (least, most) for b in (low, high)]
        least, most = min(ends), max(ends)
    return Range(least, most, re.sub(r"\[[^\]]*\]", "[]", name) if levels and not sums else "")


def _factors(name: str) -> list[str]:
    """Factors of a product of columns; a colon inside brackets separates none."""
    factors, depth = [""], 0
    for sign in name:
        depth += (sign in "[(") - (sign in "])")
        if sign == ":" and not depth:
            factors.append("")
        else:
            factors[-1] += sign
    return factors


def alone(names: Sequence[str], ranges: Ranges) -> dict[str, bool]:
    """Whether each column is the only one with its term."""
    terms = [range_of(name, ranges).levels for name in names]
    return {name: not term or terms.count(term) == 1 for name, term in zip(names, terms, strict=True)}
